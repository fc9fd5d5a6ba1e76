#!/usr/bin/env bash
# h5dump and a headless browser come from Debian. Install them where that is possible; where it is not, the tests
# that need them are skipped and say so.
set -u
missing=()
command -v h5dump >/dev/null || missing+=(hdf5-tools)
command -v chromium >/dev/null || missing+=(chromium)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "not installed, tests that need them are skipped: ${missing[*]}"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if ! { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  echo "could not install ${missing[*]}; tests that need them are skipped:"
  tail -3 "$log"
fi
rm -f "$log"
exit 0
