package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
)

// G2: no command makes a cluster. It names the setting that is missing, and says where settings are
// read from.
func TestCommandsMakeNoCluster(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "empty.env")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"migrate up", "migrate down", "migrate status", "migrate version", "migrate force 1",
		"restored", "check-config --database", "inspect", "inspect welcomes"} {
		dir := dataDir(t)
		args := append([]string{"--data-dir", dir}, strings.Fields(command)...)
		launch(t, nil, args...).fails("MLSD_DATABASE_URL", "MLSD_ENV_FILE", dir, "no mlsd is running")
		launch(t, []string{"MLSD_ENV_FILE=" + file}, args...).fails("MLSD_DATABASE_URL", file, dir)
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s made %s: %v", command, dir, err)
		}
	}
}

// packaged is an installed Debian package in a directory. This test's program is its mlsd.
type packaged struct {
	t                *testing.T
	program, envFile string
	// If this test is root, passwd is a user database in which mlsd is the account of the tests'
	// PostgreSQL.
	passwd string
	owner  *syscall.Stat_t // that account
}

// install installs a package whose settings are those lines.
func install(t *testing.T, settings ...string) *packaged {
	t.Helper()
	root := t.TempDir()
	p := &packaged{t: t, program: filepath.Join(root, "usr/bin/mlsd"), envFile: filepath.Join(root, "etc/mlsd/mlsd.env"),
		passwd: filepath.Join(root, "passwd"), owner: ownerOfPostgreSQL(t)}
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	users := fmt.Sprintf("root:x:0:0::/root:/bin/sh\nmlsd:x:%d:%d::%s:/bin/sh\n", p.owner.Uid, p.owner.Gid, root)
	for path, content := range map[string]string{p.program: string(program), p.envFile: strings.Join(settings, "\n"),
		p.passwd: users} {
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o755))
		if err != nil {
			t.Fatal(err)
		}
	}
	// Other accounts enter the directory, and do not read the settings.
	err = errors.Join(os.Chmod(filepath.Dir(root), 0o755), os.Chmod(root, 0o755), os.Chmod(p.envFile, 0o640))
	if os.Geteuid() == 0 {
		err = errors.Join(err, os.Chown(p.envFile, 0, int(p.owner.Gid)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ownerOfPostgreSQL returns the account that the tests' PostgreSQL runs as.
func ownerOfPostgreSQL(t *testing.T) *syscall.Stat_t {
	t.Helper()
	cfg, err := pgx.ParseConfig(pgtest.EmptyURL(t))
	if err != nil {
		t.Fatal(err)
	}
	socket, err := os.Stat(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	return socket.Sys().(*syscall.Stat_t)
}

// types runs a command without settings in its environment, and returns what it prints. The uid -1
// stands for the account of this test.
func (p *packaged) types(uid int, command string) (printed string, err error) {
	p.t.Helper()
	args := append([]string{p.program}, strings.Fields(command)...)
	if os.Geteuid() == 0 {
		args = append([]string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/passwd && exec "$@"`, p.passwd,
			"setpriv", "--clear-groups", "--reuid", strconv.Itoa(max(uid, 0)), "--regid", strconv.Itoa(p.group(uid))}, args...)
	}
	typed := exec.Command(args[0], args[1:]...)
	typed.Dir = "/"
	typed.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nowhere", childEnv + "=1"}
	input, err := typed.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	defer input.Close()
	output, err := typed.CombinedOutput()
	return string(output), err
}

// group returns the group of an account.
func (p *packaged) group(uid int) int {
	switch {
	case uid <= 0:
		return 0
	case uid == int(p.owner.Uid):
		return int(p.owner.Gid)
	}
	return uid
}

// nobody is a uid that no account of these tests has.
const nobody = 65534

// G2: a command of the package acts on the service's database, as root and as the service's account.
// To others it says what to type.
func TestPackagedCommands(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts processes")
	}
	database := pgtest.EmptyURL(t)
	if os.Geteuid() == 0 {
		database = strings.Replace(database, "mlsd@", "", 1) // the role then has the name of the account
	}
	p := install(t, "# the service", "MLSD_SERVICE_DID=did:web:mls.example.com", "MLSD_DATABASE_URL="+database)
	accounts := []int{-1}
	if os.Geteuid() == 0 {
		if _, err := p.types(-1, "version"); err != nil {
			t.Skipf("this root cannot have another user database: %v", err)
		}
		accounts = append(accounts, int(p.owner.Uid))
	}
	newest := strconv.Itoa(newestMigration(t))
	for _, uid := range accounts {
		for _, typed := range []struct{ command, prints string }{
			{"migrate up", ""}, {"migrate version", newest}, {"migrate status", "serves"}, {"restored", "generation"},
			{"inspect welcomes", ""}, {"check-config", "MLSD_SERVICE_DID"}, {"check-config --database", p.envFile + " line 2"},
		} {
			if printed, err := p.types(uid, typed.command); err != nil || !strings.Contains(printed, typed.prints) {
				t.Errorf("uid %d types %s: %v\n%s", uid, typed.command, err, printed)
			}
		}
	}
	// The data directory is one of this test, because this machine's may have a cluster.
	printed, err := p.types(-1, "migrate version --env-file= --data-dir "+dataDir(t))
	if err == nil || !strings.Contains(printed, "MLSD_DATABASE_URL") {
		t.Errorf("without its file the package uses %s (%v)", printed, err)
	}
	if os.Geteuid() != 0 {
		return
	}
	for _, command := range []string{"migrate status", "restored", "inspect", "check-config"} {
		printed, err := p.types(nobody, command)
		want := "from another account, type: sudo -u mlsd mlsd " + command
		if err == nil || !strings.Contains(printed, p.envFile) || !strings.Contains(printed, want) {
			t.Errorf("nobody types %s: %v\n%s", command, err, printed)
		}
	}
	if printed, err := p.types(nobody, "version"); err != nil {
		t.Errorf("nobody types version: %v\n%s", err, printed)
	}
}

// G2: check-config finds what would stop the service: a bad line of its settings, and, as root, a
// secret that the service's account cannot read.
func TestPackagedCheckConfig(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts processes")
	}
	bad := install(t, "MLSD_RATE_DID=many")
	if printed, err := bad.types(-1, "check-config"); err == nil || !strings.Contains(printed, bad.envFile+" line 1") {
		t.Errorf("broken settings: %v\n%s", err, printed)
	}
	if os.Geteuid() != 0 {
		return
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("sixteen-characters"), 0o600); err != nil {
		t.Fatal(err)
	}
	closed := install(t, "MLSD_ADMIN_TOKEN=file:"+token)
	if printed, err := closed.types(-1, "check-config"); err == nil || !strings.Contains(printed, "permission denied") {
		t.Errorf("a token that only root reads: %v\n%s", err, printed)
	}
}
