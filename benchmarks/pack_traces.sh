# To source: what the scripts that make traces bring back. Needs W, the folder with traces/ and runs/.

pack_traces() { # FILE BYTES SECONDS FIRST...: a tar of FIRST, then of each folder in traces/ and runs/ by itself, the small ones first, as many as fit
  trap - EXIT
  cd "$W" || return
  local file=$1 most=$2 seconds=$3 total=0 size one
  shift 3
  mkdir -p packed
  find traces runs -mindepth 1 -maxdepth 1 -type d 2>/dev/null | XZ_OPT=-6 timeout -k 5 "$seconds" xargs -P 16 -I{} bash -c 'one={}; tar cJf packed/${one//\//.}.tar.xz "$one"'
  rm -f "$file"
  tar cf "$file" $* # patterns too, of files in W
  for one in $(ls -rS packed); do
    size=$(stat -c %s "packed/$one")
    total=$((total + size))
    if [ "$total" -lt "$most" ]; then tar rf "$file" "packed/$one"; else echo "left out: $one, $size bytes"; fi
  done
  echo "$SECONDS s: packed $(stat -c %s "$file") bytes"
}
