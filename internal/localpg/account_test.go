package localpg

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mlsd/internal/await"
)

// asUser makes an owner run as another account. The account can access its home and a copy of this
// binary.
func asUser(t *testing.T, uid, gid uint32) func(*exec.Cmd) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else; the other tests are about this user")
	}
	base := programDir(t)
	home := filepath.Join(base, "home")
	for _, dir := range []string{base, home} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(home, int(uid), int(gid)); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(base, "test")
	copyFile(t, self, exe)
	return func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args = exe, []string{exe}
		cmd.Dir = home
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, helperEnv + "=default"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: []uint32{}}}
	}
}

// copyFile copies a program. It holds ForkLock: otherwise a child that another test starts at the
// same time would inherit the open file, and the copy could not run.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	r, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(w, r)
	for _, err := range []error{err, w.Close(), r.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	nobody, err := namedAccount("nobody")
	if err != nil {
		t.Skip(err)
	}
	asNobody := asUser(t, nobody.uid, nobody.gid)
	var home string
	o := launchOwner(t, "", func(cmd *exec.Cmd) { asNobody(cmd); home = cmd.Dir })
	pid := o.ready(t)
	dir := filepath.Join(home, ".local", "share", "mlsd")
	if got := runningPID(t, dir); got != pid {
		t.Errorf("the server of %s is %d, want %d", dir, got, pid)
	}
	o.finish(t)

	o = launchOwner(t, "", asNobody)
	o.ready(t)
	o.kill(t)
	await.Until(t, "the server went with its owner", func() bool { return none(t, dir) })
}

func TestUserWithoutAccount(t *testing.T) {
	t.Parallel()
	const uid = 54321
	o := launchOwner(t, "", asUser(t, uid, uid))
	if line := o.line(t); !strings.Contains(line, "uid 54321 has no account") {
		t.Errorf("owner: %s", line)
	}
}

func TestRootStepsDown(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := dataDir(t)
	s := start(t, Config{DataDir: dir})
	info, err := os.Stat(filepath.Join(dir, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 || info.Mode().Perm() != 0o700 {
		t.Errorf("the cluster belongs to %d with mode %o", st.Uid, info.Mode().Perm())
	}
	status, err := os.ReadFile(filepath.Join("/proc", itoa(s.PID()), "status"))
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if groups, ok := strings.CutPrefix(line, "Groups:"); ok && strings.TrimSpace(groups) != "" {
			t.Errorf("the server kept groups %s", groups)
		}
	}
	// The cluster's owner stays the account, also if other accounts exist.
	nobody, err := namedAccount("nobody")
	if err != nil {
		t.Skip(err)
	}
	other := dataDir(t)
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(other, int(nobody.uid), int(nobody.gid)); err != nil {
		t.Fatal(err)
	}
	if a, err := chooseAccount(other, true); err != nil || a.uid != nobody.uid {
		t.Errorf("account %+v, %v; want nobody", a, err)
	}
}

// H12: root takes no account that other programs have. The server runs under a uid without a name,
// and only this process's account can connect. The cluster keeps its owner.
func TestServerWithoutAccount(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	a, err := ownAccount()
	if err != nil {
		t.Fatal(err)
	}
	dir := dataDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := newFinder(t, InstalledDirs()...)
	f.account = a
	b, err := f.find(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{dir: filepath.Join(dir, "postgres"), log: discard(), settings: map[string]string{"fsync": "off"},
		account: a, bin: b}
	if err := c.initialise(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{DataDir: dir})
	mustStore(t, s)
	status, err := os.ReadFile(filepath.Join("/proc", itoa(s.PID()), "status"))
	if err != nil {
		t.Skip(err)
	}
	if want := "Uid:\t" + itoa(int(a.uid)); !strings.Contains(string(status), want) {
		t.Errorf("the server does not run as %d: %s", a.uid, status)
	}
}

// H12: of the processes that can open the socket, only those of the server's account and of this
// one's are accepted.
func TestPeer(t *testing.T) {
	t.Parallel()
	nobody, err := namedAccount("nobody")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and the account nobody:", err)
	}
	s := start(t, Config{DataDir: usedDir(t)})
	mustStore(t, s)
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skip(err)
	}
	for _, open := range []error{os.Chmod(s.socketDir, 0o777), os.Chmod(filepath.Join(s.socketDir, socketName), 0o777)} {
		if open != nil {
			t.Fatal(open)
		}
	}
	cmd := exec.Command(psql, "-h", s.socketDir, "-U", superuser, "postgres", "-c", "SELECT 1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: nobody.cred}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "authentication failed") {
		t.Errorf("nobody has connected: %v: %s", err, out)
	}
}

func TestDirectoryThatTheServerCannotEnter(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	home := dataDir(t)
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Config{DataDir: filepath.Join(home, "share", "mlsd"), download: noDownload})
	if err == nil || !strings.Contains(err.Error(), "may not enter "+home+":") {
		t.Errorf("Start: %v", err)
	}
}
