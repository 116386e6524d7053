# Sourced by .ci/run and .ci/nightly.

# Debian packages that the tests need: a browser that opens the report and MLflow's pages; the database that MLflow's
# server keeps runs in, and Compose, which reads containers/mlflow; the compiler that a real SGLang calls; an engine of
# containers, and what the nodes that the tests make are reached with.
install_debian_packages() {
    local sudo="" missing=()
    command -v chromium >/dev/null || missing+=(chromium)
    command -v docker-compose >/dev/null || missing+=(docker-compose)
    [ -d /usr/lib/postgresql ] || missing+=(postgresql)
    command -v g++ >/dev/null || missing+=(g++)
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v iptables >/dev/null || missing+=(iptables)
    command -v ip >/dev/null || missing+=(iproute2)
    [ -x /usr/sbin/sshd ] || missing+=(openssh-server openssh-client)
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    step "apt-get update" $sudo apt-get update -qq
    step "apt-get install ${missing[*]}" env DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# A fresh virtual environment with this checkout and every pinned dependency; removed on exit.
make_environment() {
    environment=$(mktemp -d)
    trap 'rm -rf "$environment"' EXIT
    step "venv" "${PYTHON:-python3}" -m venv "$environment"
    . "$environment/bin/activate"
    step "pip install" pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
}

# step NAME COMMAND...: run it and say how long it took.
step() {
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    "$@"
    echo "== $name: $((SECONDS - start)) s"
}
