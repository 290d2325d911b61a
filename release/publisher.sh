# Who publishes the releases. Read by the scripts in this folder; set it before the first release (docs/releasing.md).
# shellcheck shell=bash disable=SC2034
# The address of the repository, for example https://HOST/OWNER/vram-exporter. Links of the documentation to files that are not in a
# release lead there.
REPOSITORY=
