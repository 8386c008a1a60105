# What the parts of deploy/check.sh share. They source it.

# skip WHAT WHY ends a part that cannot be tried here.
skip() {
	echo "SKIPPED deploy $1: $2"
	exit 0
}

fail() {
	echo "FAILED: $1" >&2
	exit 1
}

# packages WHAT PACKAGE… installs Debian's packages, or skips WHAT.
packages() {
	local what=$1 missing
	shift
	command -v apt-get >/dev/null || skip "$what" "this is not Debian"
	[[ $EUID -eq 0 ]] || skip "$what" "it needs root"
	missing=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null | awk '$2 == "installed" {print $1}' |
		grep -vxFf - <(printf '%s\n' "$@") || true)
	[[ -n $missing ]] || return 0
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends $missing >/dev/null 2>&1 ||
		skip "$what" "Debian's packages cannot be installed"
}

# debian FILE ARGUMENT… makes the root file system of a Debian 13, once.
debian() {
	[[ -e $CACHE/$1 ]] && return
	mmdebstrap --quiet --variant=minbase "${@:2}" trixie "$CACHE/new-$1" >/dev/null 2>&1 || return 1
	mv "$CACHE/new-$1" "$CACHE/$1"
}

# python prepares the packages of requirements.txt, once for each content of it.
python() {
	local folder
	folder=$CACHE/python-$(sha256sum deploy/check/requirements.txt | cut -c1-12)
	if [[ ! -e $folder/ready ]]; then
		python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --requirement deploy/check/requirements.txt || return 1
		touch "$folder/ready"
	fi >&2
	echo "$folder/bin"
}

# section HEADING prints the commands below a heading of the page about installation.
section() {
	awk -v heading="$1" '
		/^#+ / {in_section = ($0 == heading)}
		/^```/ {in_block = in_section && $0 == "```sh"; next}
		in_block' docs/operating/INSTALL.md | grep . || fail "docs/operating/INSTALL.md has no commands below $1"
}

# wait_for TEXT COMMAND… repeats a command until it succeeds.
wait_for() {
	local what=$1
	shift
	for _ in {1..300}; do
		"$@" >/dev/null 2>&1 && return
		sleep 0.2
	done
	fail "$what did not come within a minute: $*"
}

# confined NAME PID shows that a process of a container has another user, no capabilities and a file
# system that not even root can write.
confined() {
	local uid
	uid=$(awk '/^Uid:/ {print $2}' "/proc/$2/status")
	[[ $uid == 10001 ]] || fail "$1 runs as uid $uid"
	grep -q '^CapEff:\s0*$' "/proc/$2/status" || fail "$1 has capabilities"
	local refusal
	refusal=$(LC_ALL=C touch "/proc/$2/root/usr/written" 2>&1) && fail "$1 can write its file system"
	[[ $refusal == *"Read-only file system" ]] || fail "$1: $refusal"
	echo "$1: uid $uid, no capabilities, ${refusal##*: }"
}

# websocket URL shows that a WebSocket reaches mlsd: it says in a frame that the ticket is not valid.
websocket() {
	local answer
	answer=$(curl --silent --http1.1 --include --no-buffer --max-time 3 --header 'Connection: Upgrade' \
		--header 'Upgrade: websocket' --header 'Sec-WebSocket-Version: 13' \
		--header 'Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==' \
		"$1/xrpc/blue.catbird.mls.subscribeConvoEvents?cursor=0&ticket=none" | tr -cd '[:print:]\n') || true
	[[ $answer == *"101 Switching Protocols"*InvalidTicket* ]] || fail "no WebSocket at $1: $answer"
}
