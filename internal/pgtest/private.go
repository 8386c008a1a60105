package pgtest

import (
	"context"

	"mlsd/internal/localpg"
	"mlsd/internal/testdir"
)

// privateServer is the PostgreSQL of this process and its directory.
type privateServer struct {
	pg  *localpg.Server
	dir *testdir.Dir // belongs to this process while it is referred to
}

// startPrivate starts a server in a temporary directory. It does not flush to disk.
func startPrivate(ctx context.Context) (*privateServer, error) {
	dir, err := testdir.Claim()
	if err != nil {
		return nil, err
	}
	if err := copyTemplate(ctx, serverTemplate, dir.Path); err != nil {
		return nil, err
	}
	downloads, err := testdir.Downloads()
	if err != nil {
		return nil, err
	}
	pg, err := localpg.Start(ctx, localpg.Config{
		DataDir:     dir.Path,
		DownloadDir: downloads,
		Settings: map[string]string{
			"fsync":                      "off",
			"full_page_writes":           "off",
			"synchronous_commit":         "off",
			"max_connections":            "400",
			"shared_buffers":             "32MB",
			"checkpoint_timeout":         "1h",
			"max_wal_size":               "128MB", // it is possibly in memory
			"autovacuum_naptime":         "10min", // a database exists for seconds only
			"dynamic_shared_memory_type": "mmap",  // /dev/shm has 64 MB in many containers
		},
	})
	if err != nil {
		return nil, err
	}
	return &privateServer{pg: pg, dir: dir}, nil
}
