package node

import (
	"os/user"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A command that root types acts as the service's account, whatever root's environment says about
// PostgreSQL.
func TestEnvironmentOfTheService(t *testing.T) {
	t.Parallel()
	got := environmentOf(&user.User{Username: "mlsd", HomeDir: "/var/lib/mlsd"}, []string{
		"PATH=/usr/bin", "HOME=/root", "USER=root", "LOGNAME=root", "XDG_DATA_HOME=/root/data", "TMPDIR=/root/tmp",
		"PGUSER=admin", "PGOPTIONS=-crow_security=off", "PGPASSFILE=/root/.pgpass", "MLSD_LISTEN=127.0.0.1:0",
	})
	want := []string{"PATH=/usr/bin", "MLSD_LISTEN=127.0.0.1:0", "HOME=/var/lib/mlsd", "USER=mlsd", "LOGNAME=mlsd"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
