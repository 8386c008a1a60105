// Package terminal shows a person what a program does. On a terminal it redraws one line. Elsewhere
// it prints only lines that stay.
package terminal

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// Progress writes lines that stay, and below them one line that is redrawn. It is safe for
// concurrent use.
type Progress struct {
	mu    sync.Mutex // guards everything below
	out   io.Writer
	tty   bool
	width int
	drawn bool

	step, detail string // what is under way; "" means nothing
	ticks        int    // since the step began
}

// New returns a Progress that writes to out. If out is nil, it writes nothing.
func New(out io.Writer) *Progress {
	p := &Progress{out: out, width: 80}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.tty = true
		if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
			p.width = width
		}
	}
	return p
}

// OnTerminal returns a Progress that writes to out as to a terminal with lines of 80 characters.
func OnTerminal(out io.Writer) *Progress { return &Progress{out: out, tty: true, width: 80} }

// Line prints a line that stays.
func (p *Progress) Line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	p.print(fmt.Sprintf(format, args...) + "\n")
}

// Write prints lines that stay, such as those of a log.
func (p *Progress) Write(lines []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	if p.out == nil {
		return len(lines), nil
	}
	return p.out.Write(lines)
}

// Now shows the present activity. Without a terminal it does nothing.
func (p *Progress) Now(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now(fmt.Sprintf(format, args...))
}

func (p *Progress) now(line string) {
	if !p.tty {
		return
	}
	text := []rune(line)
	if len(text) >= p.width {
		text = text[:p.width-1]
	}
	p.erase()
	p.print(string(text))
	p.drawn = true
}

// Step sets what is under way, and how far it is. "" ends the step. Tick shows the step.
func (p *Progress) Step(step, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if step != p.step {
		p.erase()
		p.ticks = 0
	}
	p.step, p.detail = step, detail
}

// Show calls Tick each second, until end is called.
func (p *Progress) Show() (end func()) {
	done := make(chan struct{})
	ticker := time.NewTicker(time.Second)
	go func() {
		for {
			select {
			case <-ticker.C:
				p.Tick()
			case <-done:
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		ticker.Stop()
		close(done)
		p.Step("", "")
	})
}

// Tick shows what is under way, and for how many seconds. Show calls it.
func (p *Progress) Tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ticks++; p.step != "" {
		p.now(fmt.Sprintf("%s … %s%d s", p.step, p.detail, p.ticks))
	}
}

// Clear removes the line that is redrawn.
func (p *Progress) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

func (p *Progress) erase() {
	if p.drawn {
		p.print("\r\x1b[K")
		p.drawn = false
	}
}

// print ignores errors, because they cannot be reported.
func (p *Progress) print(text string) {
	if p.out != nil {
		_, _ = io.WriteString(p.out, text)
	}
}
