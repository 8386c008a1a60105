package client

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Disk is a phone's durable storage. Only what is on it survives when the app is killed. One Write
// is atomic, like one SQLite transaction of a real app. It is safe for concurrent use.
type Disk struct {
	mu    sync.Mutex // guards files
	files map[string][]byte
}

// NewDisk returns an empty disk.
func NewDisk() *Disk { return &Disk{files: map[string][]byte{}} }

// Write stores the given files, and removes those whose content is nil.
func (d *Disk) Write(changes map[string][]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, content := range changes {
		if content == nil {
			delete(d.files, name)
			continue
		}
		d.files[name] = bytes.Clone(content)
	}
}

// Read returns a file's content.
func (d *Disk) Read(name string) ([]byte, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	content, ok := d.files[name]
	return bytes.Clone(content), ok
}

// List returns the names that start with prefix, in order.
func (d *Disk) List(prefix string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(d.files)), func(name string) bool {
		return !strings.HasPrefix(name, prefix)
	})
	return names
}
