package accounts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/worker"
)

// maxListBytes bounds the file of an Allowlist, in bytes. It has space for 1.5 million DIDs.
const maxListBytes = 64 << 20

// Allowlist is a file with the DIDs that a node admits, one per line. Empty lines are ignored, and
// so is everything after a #.
type Allowlist struct {
	path    string
	log     *slog.Logger
	removed func(did syntax.DID)
	again   atomic.Bool    // the next RunOnce reads the file even if it has not changed
	Wake    worker.Trigger // sent by Again
	read    fs.FileInfo    // the file that was last read; owned by RunOnce

	mu   sync.RWMutex // guards dids
	dids map[syntax.DID]struct{}
}

// NewAllowlist reads the list at path. It returns an error if the file cannot be read, has a line
// that is not a DID, or has no DID at all.
func NewAllowlist(path string, log *slog.Logger) (*Allowlist, error) {
	l := &Allowlist{path: path, log: log, removed: func(syntax.DID) {}, Wake: worker.NewTrigger()}
	if _, _, err := l.load(); err != nil {
		return nil, err
	}
	return l, nil
}

// OnRemoved makes the list call removed for each DID that a new version of the file no longer has.
// removed must not block. Call OnRemoved before the first RunOnce.
func (l *Allowlist) OnRemoved(removed func(did syntax.DID)) { l.removed = removed }

// Has reports whether the list has the account.
func (l *Allowlist) Has(did syntax.DID) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	_, ok := l.dids[did]
	return ok
}

// Again makes the next RunOnce begin at once, and read the file even if it has not changed. Again
// does not block.
func (l *Allowlist) Again() {
	l.again.Store(true)
	l.Wake.Send()
}

// RunOnce reads the file again if it has changed since the last reading. If the file is broken, the
// list stays as it is, and each call of RunOnce returns an error. Only one call may run at a time.
func (l *Allowlist) RunOnce(ctx context.Context) error {
	forced := l.again.Swap(false)
	now, err := os.Stat(l.path)
	if err != nil {
		return fmt.Errorf("the list of admitted accounts stays as it was: %w", err)
	}
	if !forced && os.SameFile(now, l.read) && now.ModTime().Equal(l.read.ModTime()) && now.Size() == l.read.Size() {
		return nil
	}
	before, after, err := l.load()
	if err != nil {
		return fmt.Errorf("the list of admitted accounts stays as it was: %w", err)
	}
	l.log.InfoContext(ctx, "the list of admitted accounts has been read", "accounts", len(after), "before", len(before))
	for did := range before {
		if _, ok := after[did]; !ok {
			l.removed(did)
		}
	}
	return nil
}

// load reads the file. It returns the list before the reading and the new list. Nobody changes
// either map.
func (l *Allowlist) load() (before, after map[syntax.DID]struct{}, err error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	after, err = parseList(io.LimitReader(file, maxListBytes+1), info.Size())
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", l.path, err)
	}
	l.read = info
	l.mu.Lock()
	defer l.mu.Unlock()
	before, l.dids = l.dids, after
	return before, after, nil
}

// parseList reads a list. size is the size of the file, in bytes.
func parseList(from io.Reader, size int64) (map[syntax.DID]struct{}, error) {
	if size > maxListBytes {
		return nil, fmt.Errorf("it has more than %d bytes", maxListBytes)
	}
	dids := map[syntax.DID]struct{}{}
	lines := bufio.NewScanner(from)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		did, err := syntax.ParseDID(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		dids[did] = struct{}{}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(dids) == 0 { // for example, a file that is still being written
		return nil, errors.New("it has no DID")
	}
	return dids, nil
}

// Mode says which accounts a node admits.
type Mode string

// The modes.
const (
	ModeOpen      Mode = "open"      // everybody
	ModeAllowlist Mode = "allowlist" // the accounts of a file
	ModeClosed    Mode = "closed"    // the accounts that the service knows already
)

// checkKnown returns an error unless this service knows the account: the account is a member of a
// convo, or has a KeyPackage or a push target here. A KeyPackage counts until it is deleted, 30
// days after it has ended.
func (g *Gate) checkKnown(ctx context.Context, did syntax.DID) error {
	now := g.cfg.Now()
	if a, ok := g.known.Get(did); ok {
		fresh := knownFresh
		if a.err != nil {
			fresh = answerFresh // somebody can invite the account at any time
		}
		if now.Sub(a.at) < fresh {
			return a.err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var known bool
	err := g.cfg.Lookups.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM members WHERE did = $1 AND left_at IS NULL)
			OR EXISTS (SELECT FROM key_packages WHERE did = $1)
			OR EXISTS (SELECT FROM push_targets WHERE did = $1)`, did).Scan(&known)
	if err != nil {
		return fmt.Errorf("read whether an account is known: %w", err)
	}
	var why error
	if !known {
		why = ErrNotAdmitted
	}
	g.known.Add(did, answer{why, now})
	return why
}
