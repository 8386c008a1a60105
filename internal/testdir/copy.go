package testdir

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
)

// templates are the data directories of this process from which Copy copies, by their names.
var templates struct {
	mu    sync.Mutex // guards named
	named map[string]*Dir
}

// clusterName is the directory of PostgreSQL's files in a data directory of mlsd.
const clusterName = "postgres"

// Copy copies the cluster of a template into a data directory, with its owner and modes. The first
// call of a name in a process makes the template: its server has stopped when make returns.
func Copy(name, dataDir string, make func(dataDir string) error) error {
	template, err := templateOf(name, make)
	if err == nil {
		err = copyCluster(template.Path, dataDir)
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

func copyCluster(from, to string) error {
	out, err := exec.Command("cp", "-pR", filepath.Join(from, clusterName), filepath.Join(to, clusterName)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy a cluster: %w\n%s", err, out)
	}
	return nil
}
