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

pack_runs() { # FOLDER SECONDS: the folders NAME.HOW of W in the order in which they were made, into FOLDER/runs.{1..4}.tar, with traces of one job of a program
  trap - EXIT
  cd "$W" || return
  find . -path '*.traced[1-9]/profile/*' -name '*.pt.trace.json*' -delete
  find . -path '*/profile/*' -name '*.json.gz' -print0 | timeout 20 xargs -0 -r -P 16 -n 1 gunzip # xz packs text better
  ls -d ./*.*/ | sed 's|^\./||; s|/$||' | XZ_OPT=-4 packed_folders "$2"
  ls -dtr ./*.*/ | sed 's|^\./||; s|/$|.tar.xz|' | into_tars 15300000 "$1"/runs.{1..4}.tar
  ls -l "$1"
}
