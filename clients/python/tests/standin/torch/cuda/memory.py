"""The stand-in's snapshot."""


def _dump_snapshot(filename):
    with open(filename, "wb") as file:
        file.write(b"a snapshot of the stand-in")
