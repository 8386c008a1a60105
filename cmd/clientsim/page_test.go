package main

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"mlsd/internal/pgtest"
)

// shortened has the flags that make a command of the page short, by the beginning of its arguments.
// The first row that fits counts. --list only parses the others.
var shortened = []struct{ begins, flags string }{
	{"--list", ""},
	{"--server ", "--scenario lost-answer,verified-log"},
	{"--scenario claim-at-once,verified-log ", ""},
	{"--scenario ", "--list"},
	{"bench ", "--turns 1 --for 200ms --convos 4 --senders 4 --in-flight 4 --database DATABASE"},
	{"attack ", "--list"},
	{"torture ", "--for 1s"},
	{"soak --judge ", ""},
	{"soak ", "--for 1s --every 100ms"},
	{"", "--scenario lost-answer"},
}

// The commands of docs/SIMULATOR.md do what the page says: each is played by real processes, in the
// page's order. Of G16: the command with --server failed as the page had it, no page named the two
// flags that it needed, the default port of the directory could not work, and mlsd-dev could not be
// the server.
func TestCommandsOfThePage(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	page, err := os.ReadFile("../../docs/SIMULATOR.md")
	if err != nil {
		t.Fatal(err)
	}
	p := newPlayer(t)
	found := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^    ((?:MLSD\S+ )?go run \./cmd/|… )(.*?) *(?:#.*)?$`).
		FindAllStringSubmatch(string(page), -1) {
		command := strings.Replace(m[1]+m[2], "… ", "go run ./cmd/clientsim ", 1)
		switch {
		case strings.Contains(command, "./cmd/clientsim"):
			p.play(command)
		default:
			p.serve(command)
		}
		found[strings.Fields(command[strings.Index(command, "./cmd/"):])[0]]++
	}
	if found["./cmd/clientsim"] < 15 || found["./cmd/mlsd"] != 1 || found["./cmd/mlsd-dev"] != 1 {
		t.Errorf("the page has other commands than this test knows: %v", found)
	}
}

// player plays the commands of the page.
type player struct {
	t       *testing.T
	dir     string // has the programs and is the working directory
	replace *strings.Replacer
	extra   string // flags of clientsim with --server
	server  string // URL of the server that runs
	stop    func()
}

// plc is the address of the directory on the page.
const plc = "127.0.0.1:2582"

func newPlayer(t *testing.T) *player {
	dir, err := os.MkdirTemp("", "clientsim-page-")
	if err != nil {
		t.Fatal(err)
	}
	// A server started by root runs its database as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", dir, "./cmd/clientsim", "./cmd/mlsd", "./cmd/mlsd-dev")
	build.Dir = "../.."
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	p := &player{t: t, dir: dir, stop: func() {}}
	t.Cleanup(func() {
		p.stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	at := listenable(t, plc)
	if at != plc {
		p.extra = " --plc-listen " + at
	}
	p.replace = strings.NewReplacer("go run ./cmd/", dir+"/", "=PATH", "="+dir+"/mlsd", " N", " 7", plc, at,
		"DATABASE", "'"+pgtest.URL(t)+"'")
	return p
}

// listenable returns an address, or another one if another program of this machine has it.
func listenable(t *testing.T, address string) string {
	listen, err := net.Listen("tcp", address)
	if err != nil {
		listen, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer listen.Close()
	return listen.Addr().String()
}

// command prepares a command in the working directory.
func (p *player) command(text string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", "exec env "+p.replace.Replace(text))
	cmd.Dir = p.dir
	return cmd
}

// serve starts a server, in place of the one that runs.
func (p *player) serve(text string) {
	p.stop()
	cmd := p.command(text)
	cmd.Env = append(os.Environ(), "MLSD_LISTEN=127.0.0.1:0")
	if !strings.Contains(text, "mlsd-dev") { // which has neither
		cmd.Env = append(cmd.Env, "MLSD_ADMIN_LISTEN=127.0.0.1:0", "MLSD_DATA_DIR="+filepath.Join(p.dir, "data"))
	}
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.stop = func() {
		p.stop = func() {}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			p.t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			p.t.Errorf("%s: %v\n%s", text, err, &log)
		}
	}
	late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	ready := regexp.MustCompile(`^mlsd(?: listening|-dev) on (http://\S+)$`)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if m := ready.FindStringSubmatch(lines.Text()); m != nil {
			p.server = m[1]
			return
		}
	}
	p.t.Fatalf("%s is not ready:\n%s", text, &log)
}

// play runs a command of clientsim in its short form.
func (p *player) play(text string) {
	p.t.Helper()
	_, args, _ := strings.Cut(text+" ", "./cmd/clientsim ")
	for _, row := range shortened {
		if strings.HasPrefix(args, row.begins) {
			// The flags stand before a redirection.
			before, after, redirected := strings.Cut(text, " >")
			text = before + " " + row.flags
			if redirected {
				text += " >" + after
			}
			break
		}
	}
	if strings.Contains(text, "--server http://127.0.0.1:8080") {
		text = strings.Replace(text, "http://127.0.0.1:8080", p.server, 1) + p.extra
	}
	began := time.Now()
	defer func() { p.t.Logf("%s: %s", text, time.Since(began).Round(time.Millisecond)) }()
	if output, err := p.command(text).CombinedOutput(); err != nil {
		p.t.Errorf("%s: %v\n%s", text, err, output)
	}
}
