"""Ctrl-C while a tool loads what it needs, when there is nothing to save yet."""
import os
import signal


def stop_quietly():
    """Let Ctrl-C end this process with one line: others' imports would tell of it in tracebacks, or not end at all."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def stop_as_usual():
    """Take back what `stop_quietly` set."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(number, _):
    os.write(2, b'stopped\n')
    os._exit(128 + number)
