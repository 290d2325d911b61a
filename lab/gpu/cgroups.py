"""Control groups for a check: each path is created below the mounted root, and removed after the check."""

import os

ROOT = "/sys/fs/cgroup"
V2 = os.path.join(ROOT, "cgroup.controllers")
# For version 1, one hierarchy is enough: the first of these that exists.
V1 = ("memory", "pids", "devices")


class CgroupsUnavailable(Exception):
    pass


def hierarchy():
    """The folder in which groups can be created."""
    if os.path.exists(V2):
        return ROOT
    for name in V1:
        if os.path.isdir(os.path.join(ROOT, name)):
            return os.path.join(ROOT, name)
    raise CgroupsUnavailable(f"no control groups are mounted at {ROOT}")


class Cgroup:
    """A group with all its parents. The folders that are created here are removed at the end."""

    def __init__(self, path):
        self.path = path
        self.made = []

    def __enter__(self):
        folder = hierarchy()
        try:
            for part in self.path.strip("/").split("/"):
                folder = os.path.join(folder, part)
                if not os.path.isdir(folder):
                    os.mkdir(folder)
                    self.made.append(folder)
        except OSError as error:
            self.__exit__()
            raise CgroupsUnavailable(f"cannot make {folder}: {error.strerror}") from error
        return self

    def take(self, pid):
        """Move a process into the group."""
        with open(os.path.join(hierarchy(), self.path.strip("/"), "cgroup.procs"), "w") as procs:
            procs.write(str(pid))

    def __exit__(self, *_):
        for folder in reversed(self.made):
            try:
                os.rmdir(folder)
            except OSError as error:
                print(f"   {folder} is left: {error.strerror}", flush=True)
        self.made = []
