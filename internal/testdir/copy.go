package testdir

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

const (
	// clusterName is the directory of PostgreSQL's files in a data directory of mlsd.
	clusterName = "postgres"

	sharedPrefix = "template-"
	sharedLock   = "templates" // locked to read a template, and exclusively to make or remove a template
)

// templates are the data directories of this process from which Copy copies, by their names.
var templates struct {
	mu    sync.Mutex // guards named
	named map[string]*Dir
}

// Copy copies the cluster of a template into a data directory, with its owner and modes. The first
// call with a name in a process makes the template. When make returns, the template's server has
// stopped.
func Copy(name, dataDir string, make func(dataDir string) error) error {
	template, err := templateOf(name, make)
	if err == nil {
		err = copyCluster(filepath.Join(template.Path, clusterName), dataDir)
	}
	return err
}

func templateOf(name string, make func(dataDir string) error) (*Dir, error) {
	templates.mu.Lock()
	defer templates.mu.Unlock()
	if made := templates.named[name]; made != nil {
		return made, nil
	}
	dir, err := Claim()
	if err != nil {
		return nil, err
	}
	if err := make(dir.Path); err != nil {
		return nil, errors.Join(err, dir.Remove())
	}
	if templates.named == nil {
		templates.named = map[string]*Dir{}
	}
	templates.named[name] = dir
	return dir, nil
}

// CopyShared is Copy from a template that processes share. key stands for everything that decides
// what make makes. A template with another key is replaced. A template on a disk is not shared,
// because files that are not flushed there do not survive a crash of the system.
func CopyShared(name, key, dataDir string, make func(dataDir string) error) error {
	if parentDir() != memoryDir {
		return Copy(name, dataDir, make)
	}
	base, err := baseDir()
	if err != nil {
		return err
	}
	return copyShared(base, name, key, dataDir, make)
}

func copyShared(base, name, key, dataDir string, make func(dataDir string) error) (err error) {
	template := filepath.Join(base, sharedPrefix+name+"-"+key)
	for _, how := range []int{syscall.LOCK_SH, syscall.LOCK_EX} {
		lock, err := lockFile(filepath.Join(base, sharedLock), how)
		if err != nil {
			return err
		}
		_, err = os.Stat(template)
		missing := errors.Is(err, os.ErrNotExist)
		if missing && how == syscall.LOCK_EX {
			err = makeShared(base, name, template, make)
			missing = false
		}
		if err == nil {
			err = copyCluster(template, dataDir)
		}
		if err := errors.Join(err, lock.Close()); !missing {
			return err
		}
	}
	return nil
}

// makeShared makes a template and removes the templates with other keys. The caller holds the
// exclusive lock. A template appears and vanishes as a whole, even if this process is killed.
func makeShared(base, name, template string, make func(dataDir string) error) (err error) {
	dir, err := claimIn(base)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Remove()) }()
	former, err := filepath.Glob(filepath.Join(base, sharedPrefix+name+"-*"))
	if err != nil {
		return err
	}
	for _, path := range former {
		if err := os.Rename(path, filepath.Join(dir.Path, filepath.Base(path))); err != nil {
			return err
		}
	}
	if err := make(dir.Path); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir.Path, clusterName), template)
}

func copyCluster(from, dataDir string) error {
	out, err := exec.Command("cp", "-pR", from, filepath.Join(dataDir, clusterName)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy a cluster: %w\n%s", err, out)
	}
	return nil
}
