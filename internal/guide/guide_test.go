package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// follow follows a page in which ~~~ stands for a fence.
func follow(t *testing.T, page string) (string, error) {
	t.Helper()
	var out strings.Builder
	r := reader{folder: t.TempDir(), clone: t.TempDir(), shell: []string{"bash"}, timeout: 10 * time.Second, out: &out}
	err := r.follow(t.Context(), strings.ReplaceAll(page, "~~~", "```"))
	return r.folder, err
}

// A page with every kind of block: files, commands, two terminals, a workflow.
func TestPage(t *testing.T) {
	t.Parallel()
	folder, err := follow(t, `
~~~sh server
cd mlsd
go run ./cmd/mlsd-dev
~~~

~~~sh
test -d mlsd
mkdir app && cd app
echo hello  # → hello
~~~

~~~json
{"only": "read"}
~~~

The file `+"`src/loop.sh`"+`:

~~~bash src/loop.sh
while read -r line; do
  if [ "$line" = crash ]; then kill -9 $$; fi
  echo "$1: $line" | tee -a log
done
~~~

~~~sh alice
cd app
bash src/loop.sh alice
~~~

~~~text alice
one
crash
~~~

~~~text alice shows
alice: one
~~~

~~~sh alice
echo again
bash src/loop.sh again
~~~

~~~text alice
two
~~~

~~~text alice shows
again
again: two
~~~

~~~sh host
cat app/log  # → alice: one
~~~

The workflow `+"`.github/workflows/test.yml`"+`:

~~~yaml .github/workflows/test.yml
on: push
jobs:
  test:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v5
        with: { path: server }
      - run: test -d server && touch ran
      - if: failure()
        run: exit 1
~~~
`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(folder, "app", "ran")); err != nil {
		t.Error(err)
	}
}

// A page that promises something else fails, and the error says where.
func TestWrongPages(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ page, want string }{
		"nothing to do":        {"just words\n", "nothing to do"},
		"a failing command":    {"\n~~~sh\nfalse\ntrue\n~~~\n", ":2: the shell has ended"},
		"another output":       {"~~~sh\necho a  # → b\n~~~\n", `:1: no "b"`},
		"outputs in an order":  {"~~~sh\necho a  # → b\necho b  # → a\n~~~\n", `no "a"`},
		"another server":       {"~~~sh server\nmlsd-dev\n~~~\n", "otherwise"},
		"a file without name":  {"Here:\n\n~~~ts a.ts\n1\n~~~\n", "does not name a.ts"},
		"no such terminal":     {"~~~text bob shows\na\n~~~\n", "no terminal bob"},
		"a program that ended": {"~~~sh bob\nexit\n~~~\n\n~~~text bob shows\na\n~~~\n", "has ended before"},
		"a failing step": {"`.github/workflows/t.yml`:\n\n~~~yaml .github/workflows/t.yml\non: push\njobs: {t: {runs-on: " +
			"x, steps: [{run: exit 3}]}}\n~~~\n",
			"step 1"},
		"an unknown field of a workflow": {"`.github/workflows/t.yml`:\n\n~~~yaml .github/workflows/t.yml\non: push\njob: " +
			"{}\n~~~\n", "not found in type"},
		"a service without an image": {"`compose.yaml`:\n\n~~~yaml compose.yaml\nservices: {a: {command: [b]}}\n~~~\n",
			"neither"},
		"a service that is not there": {"`compose.yaml`:\n\n~~~yaml compose.yaml\nservices: {a: {image: i, depends_on: " +
			"{b: {condition: service_started}}}}\n~~~\n",
			"depends on b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := follow(t, tc.page); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
