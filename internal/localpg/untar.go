package localpg

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// untar writes the files of a tar to dir. It refuses entries outside of dir, files that exist
// already, entries that are neither a file, a directory nor a symbolic link, and a tar of limit
// bytes or more. It keeps modes as far as the umask allows, but not owners.
func untar(ctx context.Context, from io.Reader, dir string, limit int64) (err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	limited := &io.LimitedReader{R: from, N: limit}
	files := tar.NewReader(limited)
	for {
		h, err := files.Next()
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case limited.N == 0:
			err = fmt.Errorf("more than %d bytes", limit)
		case errors.Is(err, io.EOF):
			return nil
		case err == nil:
			err = untarOne(root, h, files)
		}
		if err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
	}
}

func untarOne(root *os.Root, h *tar.Header, content io.Reader) error {
	mode := h.FileInfo().Mode().Perm()
	parent := filepath.Dir(h.Name)
	if err := root.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(h.Name, mode)
	case tar.TypeReg:
		f, err := root.OpenFile(h.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		if filepath.IsAbs(h.Linkname) || !filepath.IsLocal(filepath.Join(parent, h.Linkname)) {
			return fmt.Errorf("the link %s points outside, to %s", h.Name, h.Linkname)
		}
		return root.Symlink(h.Linkname, h.Name)
	}
	return fmt.Errorf("%s is neither a file, a directory nor a link", h.Name)
}
