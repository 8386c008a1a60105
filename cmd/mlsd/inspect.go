package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"

	"mlsd/internal/localpg"
)

// report is what one subcommand of inspect found. As JSON its field names are for scripts, and stay.
type report interface {
	// print writes it for people; cells are separated by tabs.
	print(w io.Writer)
}

// inspection looks into the database: in one transaction, which only reads and sees one moment.
type inspection struct {
	tx      pgx.Tx
	dids    bool // tell DIDs in full
	rows    int  // at most so many of what is listed
	hours   int  // so far back
	subject string
}

// part is a subcommand.
type part struct {
	name, usage string
	look        func(ctx context.Context, i inspection) (report, error)
}

// parts are the subcommands in the order in which all of them are told.
func parts() []part {
	return []part{
		{"reservations", "work outside the database that is under way or stuck", reservations},
		{"records", "idempotency records by method and state", records},
		{"conflicts", "refused requests by the hour", conflicts},
		{"welcomes", "Welcomes by state, and deliveries that failed", welcomes},
		{"keypackages", "KeyPackages by state, and DIDs that are running out", keyPackageStock},
		{"lifetimes", "how long records last, and how many there are", lifetimes},
		{"audit", "what was done to the entity ID, or transitions by number", audit},
		{"push", "push jobs that wait", pushBacklog},
	}
}

// inspectCommand is mlsd inspect.
func inspectCommand(stdout io.Writer, withConfig func(int, func(context.Context, Config, *cli.Command) error) cli.ActionFunc) *cli.Command {
	look := func(arguments int, chosen ...part) cli.ActionFunc {
		return withConfig(arguments, func(ctx context.Context, cfg Config, cmd *cli.Command) error {
			return inspect(ctx, cfg, cmd, stdout, chosen)
		})
	}
	all := look(0, parts()...)
	command := &cli.Command{
		Name: "inspect", Usage: "look into the database of a running mlsd; changes nothing", Action: all,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "as JSON"},
			&cli.BoolFlag{Name: "dids", Usage: "tell DIDs in full"},
			&cli.IntFlag{Name: "rows", Usage: "list at most so many rows", Value: 20},
			&cli.IntFlag{Name: "hours", Usage: "how far back conflicts are told", Value: 24},
			&cli.DurationFlag{Name: "timeout", Usage: "how long one query may take", Value: 30 * time.Second},
		},
		Commands: []*cli.Command{{Name: "all", Usage: "everything below (the default)", Action: all}},
	}
	for _, p := range parts() {
		arguments, usage := 0, ""
		if p.name == "audit" {
			arguments, usage = 1, "[ID]"
		}
		command.Commands = append(command.Commands, &cli.Command{
			Name: p.name, Usage: p.usage, ArgsUsage: usage, Action: look(arguments, p),
		})
	}
	return command
}

// inspect looks at the chosen parts and writes what it finds.
func inspect(ctx context.Context, cfg Config, cmd *cli.Command, stdout io.Writer, chosen []part) (err error) {
	if cmd.Int("rows") <= 0 || cmd.Int("hours") <= 0 || cmd.Duration("timeout") <= 0 {
		return errors.New("inspect: --rows, --hours and --timeout must be positive")
	}
	conn, err := inspected(ctx, cfg, cmd.Duration("timeout"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	found := make([]report, len(chosen))
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, conn, options, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('mlsd.maintenance', 'on', true)`); err != nil {
			return err
		}
		i := inspection{tx: tx, dids: cmd.Bool("dids"), rows: cmd.Int("rows"), hours: cmd.Int("hours"), subject: cmd.Args().First()}
		for n, p := range chosen {
			if found[n], err = p.look(ctx, i); err != nil {
				return fmt.Errorf("inspect %s: %w", p.name, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if cmd.Bool("json") {
		return writeJSON(stdout, chosen, found)
	}
	return writeTables(stdout, chosen, found)
}

// inspected connects to the database that cfg names, or to the private PostgreSQL of the mlsd that runs on the data directory.
func inspected(ctx context.Context, cfg Config, timeout time.Duration) (*pgx.Conn, error) {
	url, err := cfg.DatabaseURL, error(nil)
	if url == "" {
		if url, err = localpg.Running(cfg.DataDir, localpg.Database); err != nil {
			return nil, fmt.Errorf("inspect: %w; start it, or name its database in MLSD_DATABASE_URL", err)
		}
	}
	pool, err := pgxpool.ParseConfig(url) // it knows the pool's settings
	if err != nil {
		return nil, fmt.Errorf("MLSD_DATABASE_URL: %w", err)
	}
	params := pool.ConnConfig.RuntimeParams
	params["application_name"], params["timezone"] = "mlsd inspect", "UTC"
	params["statement_timeout"], params["lock_timeout"] = fmt.Sprint(timeout.Milliseconds()), "2000"
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, pool.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("inspect: reach the database: %w", err)
	}
	return conn, nil
}

// writeJSON writes one report as it is, several as an object with their names.
func writeJSON(w io.Writer, chosen []part, found []report) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	if len(found) == 1 {
		return out.Encode(found[0])
	}
	all := map[string]report{}
	for i, p := range chosen {
		all[p.name] = found[i]
	}
	return out.Encode(all)
}

func writeTables(w io.Writer, chosen []part, found []report) error {
	var text strings.Builder
	for i, p := range chosen {
		if len(chosen) > 1 {
			fmt.Fprintf(&text, "== %s: %s\n", p.name, p.usage)
		}
		table := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
		found[i].print(table)
		if err := table.Flush(); err != nil {
			return err
		}
		if i < len(chosen)-1 {
			text.WriteByte('\n')
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// list runs a query and returns its rows, each a T by position.
func list[T any](ctx context.Context, i inspection, sql string, args ...any) ([]T, error) {
	rows, err := i.tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// table writes a heading and rows; nothing but "none" if there are no rows.
func table[T any](w io.Writer, heading string, rows []T, cells func(T) []any) {
	if len(rows) == 0 {
		line(w, "none")
		return
	}
	var names []any
	for name := range strings.SplitSeq(heading, " | ") {
		names = append(names, name)
	}
	line(w, names...)
	for _, r := range rows {
		line(w, cells(r)...)
	}
}

// line writes cells. The writers are those of writeTables, which do not fail.
func line(w io.Writer, cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = strings.Map(printable, fmt.Sprint(c))
	}
	_, _ = fmt.Fprintln(w, strings.Join(texts, "\t"))
}

// printable keeps what clients wrote from writing on the operator's terminal.
func printable(r rune) rune {
	if r < ' ' || r >= 0x7f && r < 0xa0 {
		return '·'
	}
	return r
}

// did is a DID as it may be told: in full, or as much of it as tells two apart.
func (i inspection) did(text string) string {
	const shown = 4
	at := strings.LastIndexByte(text, ':') + 1
	if i.dids || !strings.HasPrefix(text, "did:") || len(text) <= at+shown {
		return text
	}
	return text[:at+shown] + "…"
}

// text is what a client wrote, without DIDs unless they may be told.
func (i inspection) text(text string) string {
	if i.dids {
		return text
	}
	return didPattern().ReplaceAllLiteralString(text, "did:…")
}

// seconds is a time span as people write it.
func seconds(n float64) string {
	d := time.Duration(n * float64(time.Second)).Round(time.Second)
	if d >= 48*time.Hour {
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
	return d.String()
}

// age is seconds, or "-" where there is nothing to have one.
func age(n *float64) string {
	if n == nil {
		return "-"
	}
	return seconds(*n)
}
