# shellcheck shell=bash
# For the checks that need Node and a real browser, which source it after they have defined skip. It
# exports CHROMIUM, by default /usr/bin/chromium, and installs Debian's if there is none.
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
	skip "node or npm is not installed"
fi
export CHROMIUM=${CHROMIUM:-/usr/bin/chromium}
if ! command -v "$CHROMIUM" >/dev/null; then
	[[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null || skip "Chromium is not installed, and only root can install Debian's"
	echo "installing Debian's chromium"
	apt-get install --yes --quiet=2 --no-install-recommends chromium >/dev/null || skip "Chromium cannot be installed"
fi
