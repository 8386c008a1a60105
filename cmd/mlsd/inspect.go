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

	"mlsd/idem"
	"mlsd/internal/localpg"
	"mlsd/internal/node"
	"mlsd/internal/pgpool"
	"mlsd/internal/quota"
	"mlsd/internal/redact"
)

// report is the result of one subcommand. Scripts read it as JSON, so its field names must not
// change.
type report interface {
	// print writes the report as text. Tabs separate the cells.
	print(w io.Writer)
}

// inspection is the read-only transaction in which all reports are made, so that they see the same
// moment, and what the operator asked.
type inspection struct {
	tx       pgx.Tx
	dids     bool   // show DIDs in full
	rows     int    // longest list
	entityID string // of audit; can be empty
	state    string // of the Welcomes that are listed; "" is any
	failed   bool   // list only Welcomes with a failed join
	byCaller bool   // list callers

	lifetimes idem.Lifetimes // as this command's settings say
	quotas    quota.Limits   // as this command's settings say
	subject   string         // of the quotas and requests; "" is all
	key       string         // of the requests; "" is any
	refused   bool           // list only requests that were refused or failed
	top       int            // longest list of quotas; 0: rows

	since time.Duration // how far back, in the reports that can say; 0: not asked
}

// subcommand makes one report.
type subcommand struct {
	name, usage string
	report      func(ctx context.Context, i inspection) (report, error)
	argument    string // as its usage shows it; "": none
	flags       []cli.Flag
}

// subcommands are in the order in which "all" prints them.
func subcommands() []subcommand {
	return []subcommand{
		{name: "request", usage: "why requests got their answers: that with the id ID, or those of a key or caller", report: reportRequests,
			argument: "[ID]", flags: requestFlags()},
		{name: "reservations", usage: "work outside the database that is under way, stuck or failed", report: reportReservations},
		{name: "records", usage: "idempotency records by method and state", report: reportRecords,
			flags: callersFlag("list the callers with the most requests, and what became of their keys")},
		{name: "conflicts", usage: "refused requests by the hour", report: reportConflicts,
			flags: callersFlag("list the callers with the most refused requests")},
		{name: "welcomes", usage: "Welcomes by state, and those whose devices have not joined", report: reportWelcomes, flags: welcomesFlags()},
		{name: "keypackages", usage: "KeyPackages by state, and DIDs that are running out", report: reportKeyPackages},
		{name: "lifetimes", usage: "how long records last, and how many there are", report: reportLifetimes},
		{name: "quotas", usage: "who has used most of which quota today", report: reportQuotas, flags: quotasFlags()},
		{name: "disputes", usage: "forked epochs and disputed commits, of CONVO or of all", report: reportDisputes, argument: "[CONVO]"},
		{name: "audit", usage: "what was done to the entity ID, or transitions by number", report: reportAudit, argument: "[ID]"},
		{name: "actions", usage: "what operators have done, to SUBJECT or at all", report: reportActions, argument: "[SUBJECT]"},
		{name: "push", usage: "push jobs that wait", report: reportPush},
	}
}

// inspectCommand returns the command "inspect".
func inspectCommand(stdout io.Writer) *cli.Command {
	show := func(arguments int, chosen ...subcommand) cli.ActionFunc {
		return node.WithConfig(arguments, func(ctx context.Context, cfg node.Config, cmd *cli.Command) error {
			return runInspect(ctx, cfg, cmd, stdout, chosen)
		})
	}
	all := show(0, subcommands()...)
	command := &cli.Command{
		Name: "inspect", Usage: "look into the database of a running mlsd; changes nothing", Action: all,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "as JSON"},
			&cli.BoolFlag{Name: "dids", Usage: "tell DIDs in full"},
			&cli.IntFlag{Name: "rows", Usage: "list at most so many rows", Value: 20},
			&cli.DurationFlag{Name: "since", Usage: "how far back: conflicts and callers in whole hours (default 24h), records by when they were made (default: all)"},
			&cli.DurationFlag{Name: "timeout", Usage: "time limit of one query", Value: 30 * time.Second},
		},
		Commands: []*cli.Command{{Name: "all", Usage: "everything below (the default)", Action: all}},
	}
	for _, s := range subcommands() {
		arguments := 0
		if s.argument != "" {
			arguments = 1
		}
		command.Commands = append(command.Commands, &cli.Command{
			Name: s.name, Usage: s.usage, ArgsUsage: s.argument, Flags: s.flags, Action: show(arguments, s),
		})
	}
	return command
}

// byCaller is the flag of subcommands that can list callers.
const byCaller = "by-caller"

func callersFlag(usage string) []cli.Flag {
	return []cli.Flag{&cli.BoolFlag{Name: byCaller, Usage: usage}}
}

// runInspect makes the reports of the chosen subcommands and writes them.
func runInspect(ctx context.Context, cfg node.Config, cmd *cli.Command, stdout io.Writer, chosen []subcommand) (err error) {
	if cmd.Int("rows") <= 0 || cmd.Duration("timeout") <= 0 || cmd.IsSet("since") && cmd.Duration("since") <= 0 {
		return errors.New("inspect: --rows, --since and --timeout must be positive")
	}
	conn, err := connectToInspect(ctx, cfg, cmd.Duration("timeout"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	reports := make([]report, len(chosen))
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, conn, options, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('mlsd.maintenance', 'on', true)`); err != nil {
			return err
		}
		i := inspection{
			tx: tx, dids: cmd.Bool("dids"), rows: cmd.Int("rows"), entityID: cmd.Args().First(),
			state: cmd.String("state"), failed: cmd.Bool("failed"),
			byCaller: cmd.Bool(byCaller), since: cmd.Duration("since"), lifetimes: cfg.Lifetimes,
			quotas: cfg.Quotas, subject: cmd.String("did"), top: cmd.Int("top"), key: cmd.String("key"), refused: cmd.Bool("refused"),
		}
		for n, s := range chosen {
			if reports[n], err = s.report(ctx, i); err != nil {
				return fmt.Errorf("inspect %s: %w", s.name, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if cmd.Bool("json") {
		return writeJSON(stdout, chosen, reports)
	}
	return writeTables(stdout, chosen, reports)
}

// connectToInspect connects to the database that cfg names, or to the private PostgreSQL of the
// mlsd that runs on the data directory.
func connectToInspect(ctx context.Context, cfg node.Config, timeout time.Duration) (*pgx.Conn, error) {
	url, err := cfg.DatabaseURL, error(nil)
	if url == "" {
		if url, err = localpg.Running(cfg.DataDir, localpg.Database); err != nil {
			return nil, fmt.Errorf("inspect: %w; start it, or name its database in MLSD_DATABASE_URL", err)
		}
	}
	pool, err := pgxpool.ParseConfig(url) // pgx.ParseConfig does not know the settings of pools
	if err != nil {
		return nil, fmt.Errorf("MLSD_DATABASE_URL: %w", err)
	}
	params := pool.ConnConfig.RuntimeParams
	params["application_name"], params["timezone"] = "mlsd inspect", "UTC"
	params["statement_timeout"], params["lock_timeout"] = fmt.Sprint(timeout.Milliseconds()), "2000"
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgpool.Connect(ctx, pool.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("inspect: reach the database: %w", err)
	}
	return conn, nil
}

// writeJSON writes a single report as it is, and several as an object whose keys are the
// subcommands' names.
func writeJSON(w io.Writer, chosen []subcommand, reports []report) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	if len(reports) == 1 {
		return out.Encode(reports[0])
	}
	all := map[string]report{}
	for i, s := range chosen {
		all[s.name] = reports[i]
	}
	return out.Encode(all)
}

func writeTables(w io.Writer, chosen []subcommand, reports []report) error {
	var text strings.Builder
	for i, s := range chosen {
		if len(chosen) > 1 {
			fmt.Fprintf(&text, "== %s: %s\n", s.name, s.usage)
		}
		table := newTable(&text)
		reports[i].print(table)
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

// newTable returns a writer that aligns cells. Tabs separate them.
func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }

// list runs a query and scans each row into a T, column by column.
func list[T any](ctx context.Context, i inspection, sql string, args ...any) ([]T, error) {
	rows, err := i.tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// table writes a heading and rows. If there are no rows, it writes "none" instead.
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

// line writes cells. Its writer is that of writeTables, which does not fail.
func line(w io.Writer, cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = strings.Map(printable, fmt.Sprint(c))
	}
	_, _ = fmt.Fprintln(w, strings.Join(texts, "\t"))
}

// printable replaces control characters: texts of clients must not control the operator's terminal.
func printable(r rune) rune {
	if r < ' ' || r >= 0x7f && r < 0xa0 {
		return '·'
	}
	return r
}

// did returns a DID as the operator asked to see it: in full, or its beginning.
func (i inspection) did(text string) string {
	const shown = 4
	at := strings.LastIndexByte(text, ':') + 1
	if i.dids || !strings.HasPrefix(text, "did:") || len(text) <= at+shown {
		return text
	}
	return text[:at+shown] + "…"
}

// text returns a client's text as the operator asked to see it: with DIDs, or without.
func (i inspection) text(text string) string {
	if i.dids {
		return text
	}
	return redact.DIDs().ReplaceAllLiteralString(text, "did:…")
}

// seconds formats a time span, such as 3d7h or 5m0s.
func seconds(n float64) string {
	d := time.Duration(n * float64(time.Second)).Round(time.Second)
	if d >= 48*time.Hour {
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
	return d.String()
}

// clock formats a moment, to the millisecond.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000") }

// age formats a time span that can be missing.
func age(n *float64) string {
	if n == nil {
		return "-"
	}
	return seconds(*n)
}
