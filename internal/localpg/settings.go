package localpg

import (
	"maps"
	"slices"
	"strings"
)

// serverArgs returns the arguments of the postmaster. Settings in them override postgresql.conf and
// ALTER SYSTEM. If a setting occurs twice, the last one applies. So the settings for the socket and
// the log come after the caller's.
func (c *cluster) serverArgs(socketDir string) []string {
	settings := map[string]string{
		"timezone":     "UTC",
		"log_timezone": "UTC",
		// After a checkpoint PostgreSQL reuses WAL segments. Making a new segment takes up to a
		// tenth of a second, in which no transaction commits. With the default, only 80 MB of
		// segments would remain after a quiet night, and the morning's load would make new ones.
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
		"hba_file=" + c.hbaFile(),
		"ident_file=" + c.identFile(),
		// logSink parses this format. It is terse and without statements: details contain keys and
		// values of rows, which must not be in logs.
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

// quoteHBA quotes one word of pg_hba.conf or pg_ident.conf.
func quoteHBA(s string) string {
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// quoteListItem quotes one item of a comma-separated setting.
func quoteListItem(s string) string {
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}
