# Who publishes the releases. The scripts in this folder read it. Set it before the first release (docs/releasing.md); RELEASE_PUBLISHER
# names another file.
# shellcheck shell=bash disable=SC2034

# Who maintains the packages, and an e-mail address: they are in the .deb, the .rpm and the chart. Without an address, they have only the name.
MAINTAINER_NAME="vram-exporter developers"
MAINTAINER_ADDRESS=

# The address of the repository, for example https://HOST/OWNER/vram-exporter, without a slash at the end. It is in the packages, the images,
# the chart and the wheel, and links of the documentation to files that are not in a release lead there.
REPOSITORY=
