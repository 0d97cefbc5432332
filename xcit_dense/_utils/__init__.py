"""What every room uses: wording, safe writing of files, processes, the machine, Ctrl-C while a tool loads."""
