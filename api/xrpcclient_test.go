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

// subscribeScript prints each message that the client yields, up to a number, and the error that it
// throws, as JSON.
const subscribeScript = `
const { Subscription } = require('@atproto/xrpc-server')
const [service, method, params, count] = process.argv.slice(2)
const bytes = (_, v) => (v instanceof Uint8Array ? { $bytes: Buffer.from(v).toString('base64') } : v)
async function main() {
  let left = Number(count)
  const sub = new Subscription({ service, method, getParams: () => JSON.parse(params), validate: (v) => v })
  for await (const message of sub) {
    console.log(JSON.stringify(message, bytes))
    if (--left === 0) return
  }
}
main().catch((e) => console.log(JSON.stringify({ threw: e.error, message: e.message }))).then(() => process.exit(0))
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
	install := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir, xrpcClient)
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

// clientReads runs the client against the world's server until it has n messages or an error.
func (w *world) clientReads(dir string, n string, params map[string]any) (lines []map[string]any) {
	w.t.Helper()
	given, err := json.Marshal(params)
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(w.t.Context(), "node", "subscribe.js", "ws://"+w.listen(), mlsapi.NSIDSubscribeConvoEvents, string(given), n)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	timer := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("node: %v\n%s%s", err, out, &stderr)
	}
	for line := range bytes.Lines(out) {
		w.t.Logf("the client got %.300s", bytes.TrimSpace(line))
		lines = append(lines, object(w.t, string(line)))
	}
	return lines
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
	prefix := mlsapi.NSIDSubscribeConvoEvents + "#"
	seen := map[any]map[string]any{}
	for _, m := range w.clientReads(dir, "4", map[string]any{"ticket": bob.ticket(), "cursor": 0}) {
		seen[m["$type"]] = m
	}
	message, _ := seen[prefix+"messageEvent"]["message"].(map[string]any)
	if len(seen) != 4 || seen[prefix+"membershipEvent"]["did"] != bob.did().String() || seen[prefix+"welcomeEvent"]["convoId"] != c.id || message["id"] != first.ID ||
		message["ciphertext"].(map[string]any)["$bytes"] != base64.StdEncoding.EncodeToString(first.Ciphertext) {
		t.Errorf("the client got %v", seen)
	}
	threw := func(lines []map[string]any, name string) {
		t.Helper()
		if len(lines) != 1 || lines[0]["threw"] != name {
			t.Errorf("the client got %v; want the error %s", lines, name)
		}
	}
	threw(w.clientReads(dir, "1", map[string]any{"ticket": bob.ticket(), "cursor": 1_000_000}), mlsapi.ErrFutureCursor)
	threw(w.clientReads(dir, "1", map[string]any{"ticket": "guess"}), mlsapi.ErrInvalidTicket)

	pretended := newWorld(t)
	h, carol := pretended.pretend(), pretended.user()
	h.outdated = true
	go func() {
		s := <-h.begun
		s.events <- welcomeEvent(9)
		s.fails <- events.ErrConsumerTooSlow
	}()
	lines := pretended.clientReads(dir, "9", map[string]any{"ticket": carol.ticket(), "cursor": 1})
	if len(lines) != 3 || lines[0]["$type"] != prefix+"infoEvent" || lines[0]["name"] != "OutdatedCursor" || lines[1]["cursor"] != float64(9) {
		t.Fatalf("the client got %v", lines)
	}
	threw(lines[2:], mlsapi.ErrConsumerTooSlow)
}
