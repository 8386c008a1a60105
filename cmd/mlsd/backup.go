package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v3"

	"mlsd/internal/localpg"
	"mlsd/migrations"
	"mlsd/node"
)

// backupCommand returns the command "backup".
func backupCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name: "backup", Usage: "copy the private PostgreSQL of the running server to a new directory", ArgsUsage: "DIR",
		Action: withDirectory(func(ctx context.Context, cfg node.Config, dir string, _ *cli.Command) error {
			m, err := localpg.Backup(ctx, cfg.DataDir, dir)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(stdout, "backup in %s: begun at %s, ended at %s\nan archive of the WAL is needed from %s on\n",
				dir, m.Began.UTC().Format(time.RFC3339), m.Ended.UTC().Format(time.RFC3339Nano), m.FirstWAL)
			return err
		}),
	}
}

// restoreCommand returns the command "restore".
func restoreCommand(stdout, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name: "restore", Usage: "make the private PostgreSQL from a backup and the WAL of MLSD_WAL_ARCHIVE; the data " +
			"directory must be empty",
		ArgsUsage: "DIR",
		Flags: []cli.Flag{
			&cli.TimestampFlag{
				Name: "to", Usage: "restore to this moment, as 2026-11-20T10:00:00Z; the default is the newest WAL",
				Config: cli.TimestampConfig{Layouts: []string{time.RFC3339Nano}},
			},
			&cli.Uint32Flag{Name: "timeline", Usage: "replay the WAL of this timeline; needed if the archive has several"},
		},
		Action: withDirectory(func(ctx context.Context, cfg node.Config, dir string, cmd *cli.Command) error {
			own := localpg.Config{DataDir: cfg.DataDir, Logger: cfg.Logger(stderr), Archive: cfg.WALArchive}
			target := localpg.Target{To: cmd.Timestamp("to"), Timeline: cmd.Uint32("timeline")}
			last, err := localpg.Restore(ctx, own, dir, target, func(ctx context.Context, s *localpg.Server) error {
				return afterRestore(ctx, s.ConnString(localpg.Database), stdout)
			})
			if err != nil {
				return err
			}
			state := "as it was when the backup ended"
			if !last.IsZero() {
				state = "the last transaction in it was committed at " + last.UTC().Format(time.RFC3339Nano)
			}
			_, err = fmt.Fprintf(stdout, "restored into %s: %s\n", cfg.DataDir, state)
			return err
		}),
	}
}

// withDirectory returns do as an action for the private PostgreSQL. The action takes one directory.
func withDirectory(do func(ctx context.Context, cfg node.Config, dir string, cmd *cli.Command) error) cli.ActionFunc {
	return node.WithConfig(1, func(ctx context.Context, cfg node.Config, cmd *cli.Command) error {
		dir := cmd.Args().First()
		switch {
		case dir == "":
			return fmt.Errorf("%s: name a directory", cmd.FullName())
		case cfg.DatabaseURL != "":
			return fmt.Errorf("%s: %w", cmd.FullName(), node.ErrNotPrivate)
		}
		return do(ctx, cfg, dir, cmd)
	})
}

// afterRestore prepares a restored database before a node uses it. The schema of a backup can be
// older, and the stream of events goes back.
func afterRestore(ctx context.Context, url string, stdout io.Writer) error {
	if err := migrations.Up(ctx, url); err != nil {
		return err
	}
	return restored(ctx, url, stdout)
}
