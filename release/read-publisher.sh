# Read by the scripts in this folder: sets MAINTAINER_NAME, MAINTAINER_ADDRESS, REPOSITORY and MAINTAINER, the name with the address, from
# publisher.sh or the file that RELEASE_PUBLISHER names.
# shellcheck shell=bash disable=SC2034
publisher=${RELEASE_PUBLISHER:-$(dirname "${BASH_SOURCE[0]}")/publisher.sh}
MAINTAINER_NAME='' MAINTAINER_ADDRESS='' REPOSITORY=''
# shellcheck source=release/publisher.sh
. "$publisher"
[[ $MAINTAINER_NAME =~ ^[^\<\>\"]+$ ]] || { echo "$publisher: MAINTAINER_NAME is empty, or has one of <>\"" >&2; exit 1; }
[[ $MAINTAINER_ADDRESS =~ ^([^[:space:]\<\>\"@]+@[^[:space:]\<\>\"@]+)?$ ]] ||
    { echo "$publisher: MAINTAINER_ADDRESS is '$MAINTAINER_ADDRESS', not NAME@HOST" >&2; exit 1; }
[[ $REPOSITORY =~ ^(https://[^[:space:]\"]+[^[:space:]\"/])?$ ]] ||
    { echo "$publisher: REPOSITORY is '$REPOSITORY', not https://HOST/PATH without a slash at the end" >&2; exit 1; }
MAINTAINER=$MAINTAINER_NAME${MAINTAINER_ADDRESS:+ <$MAINTAINER_ADDRESS>}
