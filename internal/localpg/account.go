package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// account is whom the server runs as.
type account struct {
	name     string
	uid, gid uint32
	cred     *syscall.Credential // nil: as ourselves
}

// chooseAccount says whom to run the server as. PostgreSQL refuses root, so root steps down to the owner of the cluster if there
// is one, so that the choice stays the same when accounts appear later, else to the first existing of mlsd, postgres and
// nobody. Anyone else runs it as themselves.
func chooseAccount(clusterDir string, exists bool) (*account, error) {
	var owner *syscall.Stat_t
	if exists {
		info, err := os.Stat(clusterDir)
		if err != nil {
			return nil, fmt.Errorf("cluster: %w", err)
		}
		owner, _ = info.Sys().(*syscall.Stat_t)
	}
	uid := os.Geteuid()
	switch {
	case uid != 0:
		if owner != nil && int(owner.Uid) != uid {
			return nil, fmt.Errorf("cluster %s belongs to uid %d, this process runs as uid %d", clusterDir, owner.Uid, uid)
		}
		return currentAccount(uid)
	case owner != nil && owner.Uid == 0:
		return nil, fmt.Errorf("cluster %s belongs to root, and PostgreSQL does not run as root: give it to another account (chown -R)", clusterDir)
	case owner != nil:
		return lookupAccount(func() (*user.User, error) { return user.LookupId(strconv.Itoa(int(owner.Uid))) })
	}
	names := []string{"mlsd", "postgres", "nobody"}
	for _, name := range names {
		a, err := lookupAccount(func() (*user.User, error) { return user.Lookup(name) })
		var unknown user.UnknownUserError
		switch {
		case errors.As(err, &unknown):
			continue
		case err != nil:
			return nil, err
		case a.uid != 0:
			return a, nil
		}
	}
	return nil, fmt.Errorf("PostgreSQL does not run as root, and there is no account to run it as: make one of %s", strings.Join(names, ", "))
}

// currentAccount is ourselves, who must be in the user database: initdb and the server look their own name up.
func currentAccount(uid int) (*account, error) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return nil, fmt.Errorf("uid %d has no account (no line in /etc/passwd), without which PostgreSQL cannot make a cluster: "+
			"add one, run as another user, or set a database URL: %w", uid, err)
	}
	return &account{name: u.Username, uid: uint32(uid), gid: uint32(os.Getegid())}, nil
}

// lookupAccount finds an account to step down to. Its supplementary groups are dropped: an empty list, not ours.
func lookupAccount(lookup func() (*user.User, error)) (*account, error) {
	u, err := lookup()
	if err != nil {
		return nil, fmt.Errorf("account for PostgreSQL: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("account for PostgreSQL: uid of %s: %w", u.Username, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("account for PostgreSQL: gid of %s: %w", u.Username, err)
	}
	a := &account{name: u.Username, uid: uint32(uid), gid: uint32(gid)}
	a.cred = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: []uint32{}}
	return a, nil
}

// command prepares a child of the server's installation, run as the account in dir. It gets its own process group, so that a ^C in
// a terminal reaches only us and we stop it in order, and an environment of its own: PGDATA, PGPORT or PGOPTIONS of the
// caller would change what it does, and messages must be in English to be read by us.
func (a *account) command(ctx context.Context, path, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + filepath.Dir(path) + ":/usr/bin:/bin", "LC_ALL=C", "LANG=C", "TZ=UTC", "PWD=" + dir}
	for _, name := range []string{"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.cred}
	dieWithParent(cmd.SysProcAttr)
	return cmd
}

// own gives a directory to the account, for it alone.
func (a *account) own(dir string) error {
	if a.cred != nil {
		if err := os.Chown(dir, int(a.uid), int(a.gid)); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

// checkAccess makes sure that the account can work below dir, by letting it: permission bits are not the whole story (ACLs,
// SELinux). If it cannot, the error names the first directory on the way that is closed to it.
func (a *account) checkAccess(ctx context.Context, bin binaries, dir string) error {
	if a.cred == nil {
		return nil
	}
	if !errors.Is(a.enter(ctx, bin, dir), fs.ErrPermission) {
		return nil // anything else will show, and be explained better, later
	}
	closed := dir
	for p := dir; p != filepath.Dir(p); p = filepath.Dir(p) {
		if errors.Is(a.enter(ctx, bin, p), fs.ErrPermission) {
			closed = p
		}
	}
	return fmt.Errorf("PostgreSQL does not run as root but as %q, which may not enter %s: "+
		"allow it (chmod o+x), or use another data directory, such as /var/lib/mlsd", a.name, closed)
}

// enter runs a harmless command as the account with dir as its working directory.
func (a *account) enter(ctx context.Context, bin binaries, dir string) error {
	return runChild(a.command(ctx, bin.postgres(), dir, "--version"))
}
