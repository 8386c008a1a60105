package localpg

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
)

// The files that say who may connect. Start writes them, so that a cluster of an earlier version
// has them too. The cluster's own pg_hba.conf and pg_ident.conf are not read.
const (
	hbaName   = "mlsd_hba.conf"
	identName = "mlsd_ident.conf"
)

func (c *cluster) hbaFile() string   { return filepath.Join(c.dir, hbaName) }
func (c *cluster) identFile() string { return filepath.Join(c.dir, identName) }

// writeAuth lets only the account of the server, that of this process, and root connect, as
// superuser. The operating system says who a process at the socket is. So there is no password that
// could leak. Root can do everything anyway.
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
		ident += fmt.Sprintf("mlsd %s %s\n", quoteHBA(name), superuser)
	}
	return errors.Join(
		c.writeOwned(c.hbaFile(), "local all all peer map=mlsd\nhost all all all reject\n"),
		c.writeOwned(c.identFile(), ident))
}

// writeOwned replaces a file of the cluster. Only the server's account can read it. A server of
// this cluster does not run, so no reader sees half of it.
func (c *cluster) writeOwned(path, text string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("who may connect: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("who may connect: %w", err)
	}
	_, err = f.WriteString(text)
	if c.account.cred != nil {
		err = errors.Join(err, f.Chown(int(c.account.uid), int(c.account.gid)))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("who may connect: %w", err)
	}
	return nil
}
