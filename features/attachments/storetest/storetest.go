// Package storetest has stores of attachments for tests: one in memory whose calls can be made to
// fail, and the checks that every store must pass.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"mlsd/features/attachments"
)

// ErrBroken is the failure of a call that was made to fail.
var ErrBroken = errors.New("the store answers 500")

// Fault is the way in which one call of a store fails.
type Fault string

// The faults.
const (
	Refused Fault = "refused"     // nothing happens
	Half    Fault = "half"        // part of the bytes is transferred
	Lost    Fault = "lost answer" // the call succeeds, and its answer is lost
)

// Memory is a store in memory.
type Memory struct {
	mu      sync.Mutex // guards the fields below
	objects map[string][]byte
	at      map[string]time.Time
	faults  map[string][]Fault // by call: put, open, delete, list
	calls   map[string]int
	Stop    func(call, name string) // if not nil, called before each call
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{objects: map[string][]byte{}, at: map[string]time.Time{}, faults: map[string][]Fault{},
		calls: map[string]int{}}
}

// Fail makes the next calls of a kind fail.
func (m *Memory) Fail(call string, faults ...Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults[call] = append(m.faults[call], faults...)
}

// Planned returns how many failures of a kind of calls have not happened yet.
func (m *Memory) Planned(call string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.faults[call])
}

// Calls returns the number of calls of a kind.
func (m *Memory) Calls(call string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[call]
}

// Names returns the names of the objects of attachments.
func (m *Memory) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for name := range m.objects {
		if !strings.HasPrefix(name, "databases/") { // the sweeper's claims
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// Object returns the bytes of an object, or nil if there is no such object.
func (m *Memory) Object(name string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[name]
}

// Change changes an object, as a broken disk does. If body is nil, it deletes the object.
func (m *Memory) Change(name string, body []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.objects[name] = body; body == nil {
		delete(m.objects, name)
	}
}

// Add adds an object that was written at the given time.
func (m *Memory) Add(name string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[name], m.at[name] = []byte("x"), at
}

// Age makes all objects older.
func (m *Memory) Age(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, at := range m.at {
		m.at[name] = at.Add(-by)
	}
}

// begin counts a call, and returns its fault.
func (m *Memory) begin(call, name string) Fault {
	if m.Stop != nil {
		m.Stop(call, name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[call]++
	queue := m.faults[call]
	if len(queue) == 0 {
		return ""
	}
	m.faults[call] = queue[1:]
	return queue[0]
}

// Put implements attachments.Store.
func (m *Memory) Put(_ context.Context, name string, body io.Reader, size int64) error {
	fault := m.begin("put", name)
	switch fault {
	case Refused:
		return ErrBroken
	case Half:
		_, err := io.CopyN(io.Discard, body, size/2)
		return errors.Join(err, ErrBroken)
	}
	data, err := io.ReadAll(io.LimitReader(body, size))
	if err == nil && int64(len(data)) != size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[name], m.at[name] = data, time.Now()
	if fault == Lost {
		return ErrBroken
	}
	return nil
}

// Open implements attachments.Store.
func (m *Memory) Open(_ context.Context, name string, offset, n int64) (io.ReadCloser, error) {
	fault := m.begin("open", name)
	if fault == Refused || fault == Lost {
		return nil, ErrBroken
	}
	m.mu.Lock()
	data, there := m.objects[name]
	m.mu.Unlock()
	if !there {
		return nil, attachments.ErrNoObject
	}
	offset = min(offset, int64(len(data)))
	data = data[offset:min(offset+n, int64(len(data)))]
	if fault == Half {
		return io.NopCloser(io.MultiReader(bytes.NewReader(data[:len(data)/2]), broken{})), nil
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// broken is a reader that fails.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, ErrBroken }

// Delete implements attachments.Store.
func (m *Memory) Delete(_ context.Context, name string) error {
	fault := m.begin("delete", name)
	if fault == Refused || fault == Half {
		return ErrBroken
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, name)
	if fault == Lost {
		return ErrBroken
	}
	return nil
}

// List implements attachments.Store.
func (m *Memory) List(_ context.Context, prefix, after string, limit int) (found []attachments.Object, err error) {
	if m.begin("list", prefix) != "" {
		return nil, ErrBroken
	}
	for _, name := range m.Names() {
		if strings.HasPrefix(name, prefix) && name > after && len(found) < limit {
			m.mu.Lock()
			found = append(found, attachments.Object{Name: name, At: m.at[name]})
			m.mu.Unlock()
		}
	}
	return found, nil
}
