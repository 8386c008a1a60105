// Package filestore keeps objects of attachments as files in a directory. It is the store for a
// single node, or for several nodes that share a file system.
package filestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mlsd/features/attachments"
)

// temporary is the prefix of the names of files that are being written. Such files are not objects.
const temporary = ".part-"

// temporaryLife is how old such a file is when nobody can still be writing it.
const temporaryLife = time.Hour

// Store is an attachments.Store in a directory.
type Store struct{ dir string }

// New returns a store in a directory. If the directory does not exist, New makes it.
func New(dir string) (*Store, error) {
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("make the directory of attachments: %w", err)
	}
	return &Store{dir: dir}, nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, filepath.FromSlash(name)) }

// Put implements attachments.Store. After a crash the object exists whole or not at all, because
// the file gets its name when its bytes are on the disk.
func (s *Store) Put(ctx context.Context, name string, body io.Reader, size int64) (err error) {
	path := s.path(name)
	if err := makeDir(filepath.Dir(path)); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), temporary)
	if errors.Is(err, fs.ErrNotExist) { // Delete has just removed the directory, because it was empty
		if err = makeDir(filepath.Dir(path)); err == nil {
			f, err = os.CreateTemp(filepath.Dir(path), temporary)
		}
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	n, err := io.Copy(f, io.LimitReader(body, size))
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// makeDir makes a directory and its parents, and makes their names durable.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	above := filepath.Dir(dir)
	if above == dir {
		return fs.ErrNotExist
	}
	if err := makeDir(above); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(above)
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Open implements attachments.Store.
func (s *Store) Open(_ context.Context, name string, offset, n int64) (io.ReadCloser, error) {
	f, err := os.Open(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, attachments.ErrNoObject
	}
	if err != nil {
		return nil, err
	}
	return section{io.NewSectionReader(f, offset, n), f}, nil
}

// section is a part of a file.
type section struct {
	io.Reader
	io.Closer
}

// Delete implements attachments.Store. It also removes the object's directory if the directory is
// then empty.
func (s *Store) Delete(_ context.Context, name string) error {
	path := s.path(name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(filepath.Dir(path)) // fails while the directory is not empty
	return nil
}

// List implements attachments.Store. It also deletes files that were left half written by a crash.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) (found []attachments.Object, err error) {
	from, _, _ := strings.Cut(strings.TrimPrefix(after, prefix), "/")
	for {
		dirs, err := first(s.path(strings.TrimSuffix(prefix, "/")), from, limit)
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			if len(found) == limit || ctx.Err() != nil {
				return found, ctx.Err()
			}
			in, err := s.listDir(ctx, prefix+dir+"/", after, limit-len(found))
			if err != nil {
				return nil, err
			}
			found = append(found, in...)
		}
		if len(dirs) < limit {
			return found, ctx.Err()
		}
		from = dirs[limit-1] + "\x00" // the next possible name
	}
}

// listDir is List in the directory of one attachment.
func (s *Store) listDir(ctx context.Context, prefix, after string, limit int) (found []attachments.Object, err error) {
	entries, err := os.ReadDir(s.path(prefix))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries { // sorted
		name := prefix + e.Name()
		info, err := os.Stat(s.path(name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was deleted at this moment
		case err != nil:
			return nil, err
		case strings.HasPrefix(e.Name(), temporary):
			if time.Since(info.ModTime()) > temporaryLife {
				_ = s.Delete(ctx, name) // the next round tries again
			}
		case name > after && len(found) < limit:
			found = append(found, attachments.Object{Name: name, At: info.ModTime()})
		}
	}
	return found, nil
}

// piece is how many names of a directory are read at a time.
const piece = 1024

// first returns the first names in a directory that are not below from: at most limit, sorted. If
// the directory does not exist, the result is empty. There is a directory for each attachment, so
// first takes an amount of memory that does not grow with the number of names.
func first(dir, from string, limit int) (names []string, err error) {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	for {
		read, err := d.Readdirnames(piece)
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		for _, name := range read {
			if name >= from {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		names = names[:min(limit, len(names))]
	}
}
