package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"

	"mlsd/api/mlsapi"
)

// idlers are subscribers that get no event. They listen in processes of their own: a process has only
// so many files, and a loopback address only so many ports.
type idlers struct {
	b         *bench
	streams   int
	processes []*idlerProcess
}

type idlerProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	log strings.Builder
}

const (
	idleDevices   = 16     // streams of an account: as many as a server allows
	idleOfProcess = 15_000 // streams of a process
)

// ListenCommand is the argument with which this program runs Listen.
const ListenCommand = "listen"

// listening is what Listen is to do.
type listening struct {
	Servers []string // base URLs
	Tokens  []string // for the streams of an account each, by turns
	Streams int
	From    net.IP // loopback address
}

// grow opens streams until there are n.
func (l *idlers) grow(ctx context.Context, n int) error {
	for l.streams < n {
		some := min(n-l.streams, idleOfProcess)
		if err := l.open(ctx, some); err != nil {
			return err
		}
		l.streams += some
	}
	return nil
}

// open opens streams of new accounts in a new process.
func (l *idlers) open(ctx context.Context, n int) error {
	b := l.b
	b.say("opening %d idle streams", n)
	accounts, err := b.env.accounts((n + idleDevices - 1) / idleDevices)
	if err != nil {
		return err
	}
	do := listening{Streams: n, From: net.IPv4(127, 0, 0, byte(2+len(l.processes)))}
	for _, server := range b.env.servers {
		do.Servers = append(do.Servers, server.URL())
	}
	if do.Tokens, err = signAll(accounts, mlsapi.NSIDSubscribeConvoEvents); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p := &idlerProcess{cmd: exec.CommandContext(ctx, self, ListenCommand)}
	p.cmd.Stderr = &p.log
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return err
	}
	l.processes = append(l.processes, p)
	if err := json.NewEncoder(p.in).Encode(do); err != nil {
		return err
	}
	if line, err := p.out.ReadString('\n'); err != nil || line != allOpen {
		return errors.Join(fmt.Errorf("idle streams: %q", line), err)
	}
	return nil
}

// end ends all streams. It is an error if a server has ended one.
func (l *idlers) end() error {
	var errs []error
	for _, p := range l.processes {
		err := errors.Join(p.in.Close(), p.cmd.Wait())
		if err != nil {
			err = fmt.Errorf("idle streams: %w\n%s", err, p.log.String())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// allOpen is what Listen writes when all streams are open.
const allOpen = "open\n"

// Listen reads what to do from in, opens the streams and keeps them until in ends. It returns an
// error if a server ended one.
func Listen(ctx context.Context, in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(in)
	var do listening
	if err := decoder.Decode(&do); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s, web := &streams{}, streamClient(dialer{one: new(sync.Mutex), from: do.From})
	for i := range do.Streams {
		s.all = append(s.all, &stream{token: do.Tokens[i%len(do.Tokens)], base: do.Servers[i%len(do.Servers)], web: web})
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	defer s.end()
	if _, err := io.WriteString(out, allOpen); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("listen: the end of the input was to come: %w", err)
	}
	if n := s.ended(); n > 0 {
		return fmt.Errorf("servers ended %d of %d streams", n, do.Streams)
	}
	return nil
}
