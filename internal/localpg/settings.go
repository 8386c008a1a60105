package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"mlsd/internal/errs"
)

// serverArgs returns the arguments of the postmaster. Settings in them override postgresql.conf and
// ALTER SYSTEM. If a setting occurs twice, the last one applies. So the settings for the socket and
// the log come after the caller's.
func (c *cluster) serverArgs(socketDir string) []string {
	settings := map[string]string{
		"timezone":     "UTC",
		"log_timezone": "UTC",
		// After a checkpoint PostgreSQL reuses WAL segments. Making a new segment takes up to a tenth of
		// a second, in which no transaction commits. With the default, only 80 MB of segments would
		// remain after a quiet night, and the morning's load would have to make new segments.
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
		"unix_socket_directories=" + quote(socketDir),
		"unix_socket_permissions=0700",
		"hba_file=" + c.hbaFile(),
		"ident_file=" + c.identFile(),
		// serverLog parses this format. Messages are terse and have no statements, because details
		// contain keys and values of rows, which must not be in logs.
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

// The files that say who may connect. Start writes them, so that a cluster of an earlier version
// has them too. The cluster's own pg_hba.conf and pg_ident.conf are not read.
const (
	hbaName   = "mlsd_hba.conf"
	identName = "mlsd_ident.conf"
)

func (c *cluster) hbaFile() string   { return filepath.Join(c.dir, hbaName) }
func (c *cluster) identFile() string { return filepath.Join(c.dir, identName) }

// writeAuth lets only three accounts connect, as superuser: the server's account, the account of
// this process, and root. The operating system says which account a process at the socket has. So
// there is no password that could leak. Root can do everything anyway.
func (c *cluster) writeAuth() error {
	names := map[string]bool{}
	if !c.account.unnamed {
		names[c.account.name] = true
	}
	for _, uid := range []int{0, os.Geteuid()} {
		u, err := user.LookupId(strconv.Itoa(uid))
		switch {
		case err == nil:
			names[u.Username] = true
		case uid == os.Geteuid():
			return fmt.Errorf("who may connect: the name of this process's account: %w", err)
		}
	}
	ident := ""
	for _, name := range slices.Sorted(maps.Keys(names)) {
		ident += fmt.Sprintf("mlsd %s %s\n", quote(name), superuser)
	}
	return errors.Join(
		c.writeOwned(c.hbaFile(), "local all all peer map=mlsd\nhost all all all reject\n"),
		c.writeOwned(c.identFile(), ident))
}

// writeOwned replaces a file of the cluster. Only the server's account can read it. No server of
// this cluster runs, so no reader sees half of the file.
func (c *cluster) writeOwned(path, text string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cluster: %w", err)
	}
	err := os.WriteFile(path, []byte(text), 0o600)
	if err == nil && c.account.cred != nil {
		err = os.Chown(path, int(c.account.uid), int(c.account.gid))
	}
	return errs.Wrap(err, "cluster")
}

// quote quotes a word of pg_hba.conf or pg_ident.conf, or an item of a comma-separated setting.
func quote(s string) string {
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}
