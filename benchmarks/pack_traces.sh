# To source: what the scripts that make traces bring back. Needs W, the folder in which they work.

packed_folders() { # SECONDS: each folder of W that standard input names, as packed/NAME.tar.xz, a/b as a.b
  mkdir -p packed
  XZ_OPT=${XZ_OPT:--6} timeout -k 5 "$1" xargs -P 16 -I{} bash -c 'one={} to=packed/${one//\//.}.tar.xz; tar cJf "$to.part" "$one" && mv "$to.part" "$to"'
}

into_tars() { # BYTES FILE...: what standard input names of packed/ into the files, one after the other, as many as fit
  local most=$1 total=0 size one
  shift
  while read -r one; do
    [ -f "packed/$one" ] || { echo "not packed: $one"; continue; }
    size=$(stat -c %s "packed/$one")
    if [ $((total + size)) -ge "$most" ] && [ $# -gt 1 ]; then shift; total=0; fi
    if [ $((total + size)) -ge "$most" ]; then echo "left out: $one, $size bytes"; continue; fi
    total=$((total + size))
    tar rf "$1" -C packed "$one"
  done
  echo "$SECONDS s: packed"
}

pack_traces() { # FILE BYTES SECONDS FIRST...: a tar of FIRST, then of each folder in traces/ and runs/ by itself, the small ones first, as many as fit
  trap - EXIT
  cd "$W" || return
  local file=$1 most=$2 seconds=$3
  shift 3
  find traces runs -mindepth 1 -maxdepth 1 -type d 2>/dev/null | packed_folders "$seconds"
  rm -f "$file"
  tar cf "$file" $* # patterns too, of files in W
  ls -rS packed | grep '\.xz$' | into_tars "$most" "$file"
}
