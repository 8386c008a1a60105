package testbed

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Proc is a mlsd of our own: a child process with its own data directory. It can be killed,
// restarted, and made to die at a COMMIT.
type Proc struct {
	data string // MLSD_DATA_DIR
	env  map[string]string
	log  *lastLines

	mu     sync.Mutex // guards the fields below; one start, stop or kill at a time
	binary string
	child  *child
	url    string // fixed by the first start
	admin  string
}

// Bounds of starting and stopping.
const (
	startLimit = 60 * time.Second // a first start makes a database cluster
	stopLimit  = 20 * time.Second
)

// Unlimited returns the settings with which a server has no quotas, for loads that a few accounts
// make. An older server has no quotas, and refuses variables that it does not know.
func Unlimited(ctx context.Context, binary string) (map[string]string, error) {
	ask := exec.CommandContext(ctx, binary, "--help")
	ask.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MLSD_") })
	help, err := ask.Output()
	if err != nil {
		return nil, fmt.Errorf("server: ask for its settings: %w", err)
	}
	settings := map[string]string{}
	for _, name := range regexp.MustCompile(`MLSD_QUOTA_[A-Z_]+`).FindAllString(string(help), -1) {
		settings[name] = "0"
	}
	return settings, nil
}

// plenty is a rate and a burst that simulated clients must not meet.
const plenty = "1000000/1000000"

// NewProc prepares a server that is not started yet. Start can override its settings.
func NewProc(binary, dataDir, plcURL, serviceDID string) *Proc {
	return &Proc{binary: binary, data: dataDir, log: newLastLines(40), env: map[string]string{
		"MLSD_DATA_DIR": dataDir, "MLSD_PLC_URL": plcURL, "MLSD_SERVICE_DID": serviceDID,
		"MLSD_LISTEN": "127.0.0.1:0", "MLSD_ADMIN_LISTEN": "127.0.0.1:0",
		"MLSD_ALLOW_LOOPBACK": "true", "MLSD_FAILPOINTS": "true",
		"MLSD_RATE_DID": plenty, "MLSD_RATE_IP": plenty,
	}}
}

// UseBinary makes the next Start run another binary, at the same address and with the same data.
func (p *Proc) UseBinary(path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.binary = path
}

// Binary returns the program that the next Start runs.
func (p *Proc) Binary() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.binary
}

// useDefaults makes the next Start run the server as an operator would: with its default limits and
// without failpoints.
func (p *Proc) useDefaults() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.env, func(name, value string) bool { return value == plenty || name == "MLSD_FAILPOINTS" })
}

// URL is the server's address, fixed by the first Start.
func (p *Proc) URL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.url
}

// AdminURL is the address of the admin listener, which changes with each Start.
func (p *Proc) AdminURL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.admin
}

// PID is the server's process id, or 0 if the server does not run.
func (p *Proc) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return 0
	}
	return p.child.cmd.Process.Pid
}

// Start starts the server with its usual settings and the given ones, and returns when it is ready.
// Later starts use the port of the first.
func (p *Proc) Start(ctx context.Context, settings map[string]string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != nil {
		return errors.New("server: it is running")
	}
	cmd := exec.Command(p.binary)
	cmd.Env = p.environment(settings)
	cmd.Stderr = p.log
	// A database that outlives a killed server keeps its standard error open.
	cmd.WaitDelay = time.Second
	stdout, theirs, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	cmd.Stdout = theirs
	run, err := startChild("server", cmd, p.log, nil)
	if closeErr := theirs.Close(); err != nil || closeErr != nil {
		return errors.Join(err, closeErr, stdout.Close())
	}
	lines := make(chan string, 64)
	go p.read(stdout, lines)
	p.child = run
	if err := p.awaitReady(ctx, run, lines); err != nil {
		return errors.Join(fmt.Errorf("server: %w\n%s", err, p.log), p.end(syscall.SIGKILL))
	}
	return nil
}

// environment is our environment without the variables that begin with MLSD_ or PG.
func (p *Proc) environment(settings map[string]string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MLSD_") || strings.HasPrefix(v, "PG")
	})
	all := maps.Clone(p.env)
	maps.Copy(all, settings)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return env
}

// Command runs a command of mlsd with the server's settings and others.
func (p *Proc) Command(ctx context.Context, settings map[string]string, args ...string) error {
	cmd := exec.CommandContext(ctx, p.Binary(), args...)
	cmd.Env = p.environment(settings)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mlsd %v: %w\n%s", args, err, out)
	}
	return nil
}

// read passes the server's output lines on until the server closes its standard output.
func (p *Proc) read(stdout io.ReadCloser, lines chan<- string) {
	defer close(lines)
	scan := bufio.NewScanner(stdout)
	for scan.Scan() {
		p.log.add(scan.Text())
		select {
		case lines <- scan.Text():
		default: // only the ready lines are read
		}
	}
	if err := errors.Join(scan.Err(), stdout.Close()); err != nil {
		p.log.add("reading its output: " + err.Error())
	}
}

func (p *Proc) awaitReady(ctx context.Context, run *child, lines <-chan string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	var public, admin string
	for public == "" || admin == "" {
		select {
		case line, ok := <-lines:
			if !ok {
				lines = nil // the server is about to exit
				continue
			}
			if _, at, ok := strings.Cut(line, "mlsd listening on "); ok {
				public = strings.TrimSpace(at)
			}
			if _, at, ok := strings.Cut(line, "mlsd admin on "); ok {
				admin = strings.TrimSpace(at)
			}
		case <-run.done:
			return fmt.Errorf("it exited before it was ready: %w", run.err)
		case <-ctx.Done():
			return fmt.Errorf("no ready line: %w", ctx.Err())
		}
	}
	p.url, p.admin = public, admin
	p.env["MLSD_LISTEN"] = strings.TrimPrefix(public, "http://")
	return nil
}

// Stop shuts the server down in order.
func (p *Proc) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end(syscall.SIGTERM)
}

// Kill kills the server with SIGKILL, whatever it is doing.
func (p *Proc) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end(syscall.SIGKILL)
}

// Suspend stops the server's process where it is, until Continue.
func (p *Proc) Suspend() error { return p.signal(syscall.SIGSTOP) }

// Continue ends Suspend.
func (p *Proc) Continue() error { return p.signal(syscall.SIGCONT) }

func (p *Proc) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return errors.New("server: it does not run")
	}
	return p.child.signal(s)
}

// Exited returns an error if the server was started and has exited by itself.
func (p *Proc) Exited() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil || !p.child.exited() {
		return nil
	}
	return fmt.Errorf("server: it exited by itself: %w\n%s", cmp.Or(p.child.err, errors.New("status 0")), p.log)
}

// end signals the child and waits for it. Only an orderly stop can fail.
func (p *Proc) end(signal syscall.Signal) error {
	run := p.child
	if run == nil {
		return nil
	}
	p.child = nil
	if err := run.end(signal); err != nil {
		return err
	}
	if signal == syscall.SIGTERM && run.err != nil {
		return fmt.Errorf("server: shutdown: %w\n%s", run.err, p.log)
	}
	return nil
}

// Died waits until the server has exited by itself, as after an armed kill.
func (p *Proc) Died() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return nil
	}
	err := p.child.await(stopLimit)
	if err == nil {
		p.child = nil
	}
	return err
}

// lastLines keeps the last lines of the server's output for an error message.
type lastLines struct {
	mu     sync.Mutex // guards the fields below
	lines  []string
	keep   int
	failed []string // the first lines that say that a request failed
}

func newLastLines(keep int) *lastLines { return &lastLines{keep: keep} }

// Write implements io.Writer.
func (t *lastLines) Write(b []byte) (int, error) {
	t.add(strings.TrimRight(string(b), "\n"))
	return len(b), nil
}

func (t *lastLines) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line)
	if strings.Contains(line, `"msg":"request failed"`) && len(t.failed) < t.keep {
		t.failed = append(t.failed, line)
	}
	if extra := len(t.lines) - t.keep; extra > 0 {
		t.lines = slices.Delete(t.lines, 0, extra)
	}
}

func (t *lastLines) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return "last output of the server:\n  " + strings.Join(t.lines, "\n  ")
}

// FailedRequests returns the first lines of the log that say that a request failed, as text. It
// leaves out other errors, which are many while everything fails.
func (p *Proc) FailedRequests() string {
	p.log.mu.Lock()
	defer p.log.mu.Unlock()
	return strings.Join(p.log.failed, "\n  ")
}

// Failpoints of the server. Its admin listener arms them.
const (
	BeforeCommit = "before-commit"
	AfterCommit  = "after-commit"
	// These are for work outside the database, such as a push.
	BeforeReserve = "before-reserve"
	AfterReserve  = "after-reserve"
	AfterWork     = "after-work"
)

// The names that failpoints give to the server's work for pushes and invitations.
const (
	NSIDInvitation = "mlsd.invitation"

	NSIDPushJob    = "mlsd.push"
	NSIDPushFanout = "mlsd.push.fanout"
)

// Arm makes the next transaction of method do action at a failpoint, once.
func (p *Proc) Arm(ctx context.Context, point string, method syntax.NSID, action string) error {
	query := url.Values{"point": {point}, "method": {method.String()}, "action": {action}}
	_, err := p.Admin(ctx, http.MethodPost, "/failpoints?"+query.Encode(), nil)
	return err
}
