package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// copyTree copies the files and directories below from that take chooses, by their paths from
// there, to the directory to, and puts them on disk. What vanishes meanwhile is left out. Modes are
// kept, owners are not. Anything but files and directories is an error.
func copyTree(ctx context.Context, from, to string, take func(path string, entry fs.DirEntry) bool) error {
	var dirs []string
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != from:
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		switch {
		case path != from && !take(relative, entry):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			dirs = append(dirs, target)
			return os.MkdirAll(target, 0o700)
		case !entry.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", path)
		}
		return copySynced(path, target)
	})
	for _, dir := range dirs {
		if err == nil {
			err = syncDir(dir)
		}
	}
	return err
}

// copySynced copies a file and puts it on disk. A file that has vanished is left out.
func copySynced(from, to string) (err error) {
	source, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	if err == nil {
		err = target.Sync()
	}
	return errors.Join(err, target.Close())
}

// writeSynced writes a new file and puts it on disk.
func writeSynced(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}
