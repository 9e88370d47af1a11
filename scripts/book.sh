#!/usr/bin/env bash
# Build the documentation as a site with search: .pg/book/html/index.html. Its pages are those of docs/.
#
#   book.sh           build the site
#   book.sh --serve   build it, and show it on http://localhost:BOOK_PORT/ (8091)
#
# It takes the mdBook 0.5 in PATH, or else builds one into .pg/tools once. The script that draws the diagrams comes
# from npm. Without npm they are shown as text.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
with_lock book
cd "$ROOT"
case ${1:-} in '' | --serve) ;; *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;; esac

mdbook=0.5.4 mermaid=12.3.0
tools=$ROOT/.pg/tools book=$ROOT/.pg/book
build=$tools/bin/mdbook
if [[ $(mdbook --version 2>/dev/null) == "mdbook v${mdbook%.*}."* ]]; then
  build=mdbook
elif [[ $("$build" --version 2>/dev/null) != "mdbook v$mdbook" ]]; then
  step "book: building mdBook $mdbook (some minutes, once)"
  run_quiet "cargo install" "$ROOT/.pg/book-cargo.log" cargo install --quiet --locked --root "$tools" \
    --version "=$mdbook" --no-default-features --features search mdbook
fi
mkdir -p "$book"
if [[ ! -e $tools/mermaid-$mermaid.js ]] && command -v npm >/dev/null; then
  run_quiet "npm pack" "$ROOT/.pg/book-npm.log" npm pack --silent --pack-destination "$tools" "mermaid@$mermaid"
  tar -xzOf "$tools/mermaid-$mermaid.tgz" package/dist/mermaid.min.js >"$tools/mermaid-$mermaid.js.new"
  mv "$tools/mermaid-$mermaid.js.new" "$tools/mermaid-$mermaid.js"
  rm "$tools/mermaid-$mermaid.tgz"
fi
if [[ -e $tools/mermaid-$mermaid.js ]]; then cp "$tools/mermaid-$mermaid.js" "$book/mermaid.min.js"; fi
python3 -B scripts/docs/book.py "$book"
run_quiet "mdbook" "$ROOT/.pg/book.log" "$build" build "$book"
step "book: $book/html/index.html"
if [[ ${1:-} == --serve ]]; then
  exec python3 -m http.server --bind 127.0.0.1 --directory "$book/html" "${BOOK_PORT:-8091}"
fi
