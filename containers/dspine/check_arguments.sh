# check_arguments.sh URL REVISION: refuses a build that does not say which code it is to hold.
refuse() {
    echo "refused: $1" >&2
    exit 1
}

[ -n "$1" ] || refuse "which code? --build-arg DSPINE_GIT_URL=<git URL of the vendor's repository>"
[ -n "$2" ] || refuse "which revision of $1? --build-arg DSPINE_GIT_REVISION=<commit>; git ls-remote $1 lists them"
case "$1" in
    http*://*@*) refuse "DSPINE_GIT_URL holds credentials, which would stay in the image's history; see README.md" ;;
esac
command -v git >/dev/null || refuse "the image that this one is built on has no git; install it there"
