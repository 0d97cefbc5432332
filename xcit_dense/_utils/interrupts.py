"""Ctrl-C while a tool loads what it needs, when there is nothing to save yet."""
import os
import signal


def stop_quietly():
    """Let Ctrl-C end this process with one line; during imports it would print tracebacks, or not end the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def stop_as_usual():
    """Undo `stop_quietly`."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(number, _):
    os.write(2, b'stopped\n')
    os._exit(128 + number)
