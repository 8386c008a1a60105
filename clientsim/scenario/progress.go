package scenario

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// Progress shows a person what is going on. On a terminal it redraws one line. Elsewhere it prints
// a line per scenario.
type Progress struct {
	mu    sync.Mutex // guards out and drawn
	out   io.Writer
	tty   bool
	width int
	drawn bool
}

// NewProgress writes to out. With nil it writes nothing.
func NewProgress(out io.Writer) *Progress {
	p := &Progress{out: out, width: 80}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.tty = true
		if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
			p.width = width
		}
	}
	return p
}

// Line prints a line that stays.
func (p *Progress) Line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	p.print(fmt.Sprintf(format, args...) + "\n")
}

// Now shows the present activity. Without a terminal it does nothing.
func (p *Progress) Now(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.tty {
		return
	}
	text := []rune(fmt.Sprintf(format, args...))
	if len(text) >= p.width {
		text = text[:p.width-1]
	}
	p.erase()
	p.print(string(text))
	p.drawn = true
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
