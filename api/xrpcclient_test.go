package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/events"
)

// xrpcClient is the npm package whose client the test runs.
const xrpcClient = "@atproto/xrpc-server@0.10.21"

// subscribeScript makes one subscription after the other. It prints each message that the client
// yields, up to a number, and the error that it throws, as JSON, with the index of the subscription.
const subscribeScript = `
const { Subscription } = require('@atproto/xrpc-server')
const [method, subscriptions] = process.argv.slice(2)
const bytes = (_, v) => (v instanceof Uint8Array ? { $bytes: Buffer.from(v).toString('base64') } : v)
async function read(index, { service, params, count }) {
  const print = (got) => console.log(JSON.stringify({ index, got }, bytes))
  try {
    for await (const message of new Subscription({ service, method, getParams: () => params, validate: (v) => v })) {
      print(message)
      if (--count === 0) return
    }
  } catch (e) {
    print({ threw: e.error, message: e.message })
  }
}
async function main() {
  for (const [i, s] of JSON.parse(subscriptions).entries()) await read(i, s)
}
main().then(() => process.exit(0))
`

// installTimeout is how long npm may take. A registry that does not answer is like none.
const installTimeout = 2 * time.Minute

// npm installs the client, or skips the test.
func npm(t *testing.T) (dir string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no client from npm")
	}
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("there is no %s to run the TypeScript client with", tool)
		}
	}
	dir = t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), installTimeout)
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir,
		xrpcClient)
	install.Dir = dir
	install.WaitDelay = time.Second
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("%s cannot be had: %v\n%s", xrpcClient, err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "subscribe.js"), []byte(subscribeScript), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// clientReading is a subscription of the client. It ends with Count messages or an error.
type clientReading struct {
	Service string         `json:"service"`
	Params  map[string]any `json:"params"`
	Count   int            `json:"count"`
}

// clientReads runs the client, and returns what it got in each subscription.
func clientReads(t *testing.T, dir string, readings ...clientReading) [][]map[string]any {
	t.Helper()
	given, err := json.Marshal(readings)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "subscribe.js", mlsapi.NSIDSubscribeConvoEvents, string(given))
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v\n%s%s", err, out, &stderr)
	}
	got := make([][]map[string]any, len(readings))
	for line := range bytes.Lines(out) {
		t.Logf("the client got %.300s", bytes.TrimSpace(line))
		l := read[struct {
			Index int
			Got   map[string]any
		}](t, line)
		got[l.Index] = append(got[l.Index], l.Got)
	}
	return got
}

// The AT Protocol's own client reads the frames.
func TestXrpcServerClient(t *testing.T) {
	t.Parallel()
	dir := npm(t)
	w := newWorld(t, live)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.send(c, "hello")
	first := bob.page(c).Messages[0]
	pretended := newWorld(t)
	h, carol := pretended.pretend(), pretended.user()
	h.outdated = true
	go func() {
		s := <-h.begun
		s.events <- welcomeEvent(9)
		s.fails <- events.ErrConsumerTooSlow
	}()
	service, other := "ws://"+w.listen(), "ws://"+pretended.listen()
	got := clientReads(t, dir,
		clientReading{service, map[string]any{"ticket": bob.ticket(), "cursor": 0}, 4},
		clientReading{service, map[string]any{"ticket": bob.ticket(), "cursor": 1_000_000}, 1},
		clientReading{service, map[string]any{"ticket": "guess"}, 1},
		clientReading{other, map[string]any{"ticket": carol.ticket(), "cursor": 1}, 9})

	prefix := mlsapi.NSIDSubscribeConvoEvents + "#"
	seen := map[any]map[string]any{}
	for _, m := range got[0] {
		seen[m["$type"]] = m
	}
	message, _ := seen[prefix+"messageEvent"]["message"].(map[string]any)
	if len(seen) != 4 || seen[prefix+"membershipEvent"]["did"] != bob.did().String() ||
		seen[prefix+"welcomeEvent"]["convoId"] != c.id || message["id"] != first.ID ||
		message["ciphertext"].(map[string]any)["$bytes"] != base64.StdEncoding.EncodeToString(first.Ciphertext) {
		t.Errorf("the client got %v", seen)
	}
	threw := func(lines []map[string]any, name string) {
		t.Helper()
		if len(lines) != 1 || lines[0]["threw"] != name {
			t.Errorf("the client got %v; want the error %s", lines, name)
		}
	}
	threw(got[1], mlsapi.ErrFutureCursor)
	threw(got[2], mlsapi.ErrInvalidTicket)
	lines := got[3]
	if len(lines) != 3 || lines[0]["$type"] != prefix+"infoEvent" || lines[0]["name"] != "OutdatedCursor" ||
		lines[1]["cursor"] != float64(9) {
		t.Fatalf("the client got %v", lines)
	}
	threw(lines[2:], mlsapi.ErrConsumerTooSlow)
}
