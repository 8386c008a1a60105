package localpg

import (
	"maps"
	"slices"
	"strings"
)

// serverArgs is the postmaster's command line. Settings given there win over postgresql.conf and ALTER SYSTEM; of one given twice
// the last wins, so ours about where to listen come after the caller's.
func (c *cluster) serverArgs(socketDir string) []string {
	settings := map[string]string{
		"timezone":     "UTC",
		"log_timezone": "UTC",
		// What a checkpoint leaves of the WAL is written again. To make a new segment takes up to a tenth of a second, in which nothing is
		// committed; PostgreSQL would keep 80 MB after a quiet night, and make the others anew in the morning.
		"min_wal_size": "1GB",
	}
	maps.Copy(settings, c.settings)
	args := []string{"-D", c.dir}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	for _, s := range []string{
		"listen_addresses=",
		"port=" + port,
		"unix_socket_directories=" + quoteListItem(socketDir),
		"unix_socket_permissions=0700",
		// What logSink reads. Terse and without the statement: details hold keys and values of rows, and those stay out of logs.
		"log_destination=stderr",
		"logging_collector=off",
		"log_line_prefix=" + linePrefix,
		"log_error_verbosity=terse",
		"log_min_error_statement=panic",
		"lc_messages=C",
	} {
		args = append(args, "-c", s)
	}
	return args
}

// quoteListItem quotes one item of a comma-separated setting.
func quoteListItem(s string) string {
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}
