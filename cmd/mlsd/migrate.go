package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"mlsd/events"
	"mlsd/internal/pgpool"
	"mlsd/migrations"
	"mlsd/node"
	"mlsd/operator"
)

// deletesData is the flag that a Down requires, because it deletes data.
const deletesData = "yes-delete-data"

// migrateCommand returns the command "migrate".
func migrateCommand(stdout, stderr io.Writer) *cli.Command {
	m := migrator{stdout: stdout, stderr: stderr}
	return &cli.Command{Name: "migrate", Usage: "change the database schema", Commands: []*cli.Command{
		{Name: "up", Usage: "apply what is missing", Action: node.AsService(0, m.up)},
		{Name: "down", Usage: "take back the newest migration, or as many as the argument says, with their data; no node " +
			"may run",
			ArgsUsage: "[N]", Action: node.AsService(1, m.down),
			Flags: []cli.Flag{&cli.BoolFlag{Name: deletesData, Usage: "yes, delete what these migrations have added"}}},
		{Name: "status", Usage: "print the versions of the database and of this mlsd, and which nodes run",
			Action: node.AsService(0, m.status)},
		{Name: "force", Usage: "clear the mark of an interrupted migration: the schema has this version",
			ArgsUsage: "VERSION", Action: node.AsService(1, m.force)},
		{Name: "version", Usage: "print the schema's version", Action: node.AsService(0, m.version)},
	}}
}

// migrator has the actions of the command "migrate".
type migrator struct{ stdout, stderr io.Writer }

func (m migrator) up(ctx context.Context, cfg node.Config, _ *cli.Command) error {
	return node.WithDatabase(ctx, cfg, m.stderr, func(url string) error { return migrations.Up(ctx, url, m.log(cfg)) })
}

func (m migrator) log(cfg node.Config) migrations.Option {
	return migrations.Log(cfg.Logger(m.stderr))
}

func (m migrator) down(ctx context.Context, cfg node.Config, cmd *cli.Command) error {
	n := 1
	if text := cmd.Args().First(); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("migrate down: %q is not a number", text)
		}
	}
	return node.WithDatabase(ctx, cfg, m.stderr, func(url string) error {
		if n > 0 && !cmd.Bool(deletesData) {
			return refuseDown(ctx, url, n)
		}
		return migrations.Down(ctx, url, n, m.log(cfg), migrations.Unless(nodesLive))
	})
}

// refuseDown returns an error that lists what a Down would run.
func refuseDown(ctx context.Context, url string, n int) error {
	downs, err := migrations.Downs(ctx, url, n)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, d := range downs {
		fmt.Fprintf(&text, "\n\n%s:\n%s", d.Name, strings.TrimSpace(d.SQL))
	}
	return fmt.Errorf("migrate down %d deletes data, and only a backup brings it back. Add --%s if that is meant. This "+
		"would run:%s",
		n, deletesData, text.String())
}

// nodesLive returns an error if a node runs on the database.
func nodesLive(ctx context.Context, db pgpool.Queryer) error {
	nodes, err := events.LiveNodes(ctx, db)
	if err != nil || len(nodes) == 0 {
		return err
	}
	var ids []string
	for _, n := range nodes {
		ids = append(ids, n.ID.String())
	}
	return fmt.Errorf("%d nodes run on this database (%s): stop them first; a node that was killed counts for 15 s",
		len(nodes), strings.Join(ids, ", "))
}

func (m migrator) status(ctx context.Context, cfg node.Config, _ *cli.Command) error {
	return node.WithDatabase(ctx, cfg, m.stderr, func(url string) error {
		db, err := pgpool.OpenMaintenance(ctx, url)
		if err != nil {
			return err
		}
		defer db.Close()
		return writeStatus(ctx, m.stdout, db)
	})
}

// writeStatus writes the version of the schema, and which nodes use it.
func writeStatus(ctx context.Context, w io.Writer, db *pgxpool.Pool) error {
	state, err := migrations.Read(ctx, db)
	if err != nil {
		return err
	}
	nodes, err := events.LiveNodes(ctx, db)
	if err != nil {
		return err
	}
	serves := "yes"
	if err := state.Serves(migrations.Newest()); err != nil {
		serves = "no: " + err.Error()
	}
	var out strings.Builder
	table := operator.NewTable(&out)
	operator.Line(table, "database", state.Version)
	operator.Line(table, "this mlsd", migrations.Newest())
	operator.Line(table, "dirty", yesNo(state.Dirty))
	operator.Line(table, "serves", serves)
	if state.MinBinary > 0 {
		operator.Line(table, "needs an mlsd that knows", state.MinBinary)
	}
	operator.Line(table, "live nodes", len(nodes))
	for _, n := range nodes {
		operator.Line(table, "  "+n.ID.String(), releaseText(n.Release), "seen "+n.RenewedAt.UTC().Format(time.RFC3339))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err = io.WriteString(w, out.String())
	return err
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// releaseText returns, as a text, the release that a node runs.
func releaseText(r events.Release) string {
	return fmt.Sprintf("build %s, knows %d", r.Build, r.Schema)
}

func (m migrator) force(ctx context.Context, cfg node.Config, cmd *cli.Command) error {
	version, err := strconv.ParseUint(cmd.Args().First(), 10, 31)
	if err != nil {
		return errors.New("migrate force: the argument is the version that the tables have")
	}
	return node.WithDatabase(ctx, cfg, m.stderr, func(url string) error {
		if err := migrations.Force(ctx, url, uint(version), m.log(cfg)); err != nil {
			return err
		}
		_, err = fmt.Fprintf(m.stdout, "the schema has version %d and is not dirty any more; next: mlsd migrate up\n",
			version)
		return err
	})
}

func (m migrator) version(ctx context.Context, cfg node.Config, _ *cli.Command) error {
	return node.WithDatabase(ctx, cfg, m.stderr, func(url string) error {
		db, err := pgpool.OpenMaintenance(ctx, url)
		if err != nil {
			return err
		}
		defer db.Close()
		state, err := migrations.Read(ctx, db)
		if err == nil && state.Dirty {
			err = state.Serves(migrations.Newest())
		}
		if err == nil {
			_, err = fmt.Fprintln(m.stdout, state.Version)
		}
		return err
	})
}
