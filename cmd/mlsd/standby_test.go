package main

import (
	"net/http"
	"net/url"
	"testing"

	"mlsd/internal/await"
	"mlsd/internal/pgtest"
)

// Two nodes have one database, and one of them reads from its standby. What was sent through the
// other is read at once. The loss of the standby is seen in the metrics only.
func TestStandby(t *testing.T) {
	t.Parallel()
	w, pair := newWorld(t), pgtest.NewPair(t)
	writer := boot(t, []string{"MLSD_DATABASE_URL=" + pair.Primary}, w.flags()...)
	reader := boot(t, []string{"MLSD_DATABASE_URL=" + pair.Primary, "MLSD_READ_DATABASE_URL=" + pair.Standby},
		w.flags()...)
	awaitState := func(state string) {
		t.Helper()
		await.Until(t, "the standby is "+state,
			func() bool { return scrape(t, reader)[`mlsd_standby{state="`+state+`"}`] == 1 })
	}
	awaitState("used")
	w.use(writer.admin, writer.public)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	sent := 0
	wantRead := func() {
		t.Helper()
		w.use(writer.admin, writer.public)
		alice.procedure("blue.catbird.mls.sendMessage", alice.message(c, "hello")).must().ok()
		sent++
		w.use(reader.admin, reader.public)
		if got := len(bob.log(c)); got != sent {
			t.Errorf("Bob reads %d messages of %d", got, sent)
		}
	}
	await.Until(t, "something was read from the standby", func() bool {
		wantRead()
		return scrape(t, reader)[`mlsd_reads_total{source="standby"}`] > 0
	})
	pair.Stop(pgtest.StandbyServer)
	wantRead()
	awaitState("unreachable")
	wantRead()
	wantPage(t, reader.admin+"/readyz", http.StatusOK, "ok\n")
	later := boot(t, []string{"MLSD_DATABASE_URL=" + pair.Primary, "MLSD_READ_DATABASE_URL=" + pair.Standby}, w.flags()...)
	wantPage(t, later.admin+"/readyz", http.StatusOK, "ok\n")
	pair.Start(pgtest.StandbyServer)
	awaitState("used")
	wantRead()
	w.wantSound()
	later.stop()
	reader.stop()
}

// What is no standby of the database is refused at the start, and by check-config.
func TestStandbyOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	pair := pgtest.NewPair(t)
	other, err := url.Parse(pair.Standby)
	if err != nil {
		t.Fatal(err)
	}
	other.Path = "/postgres"
	for _, wrong := range []string{pgtest.URL(t), other.String()} {
		environ := []string{"MLSD_DATABASE_URL=" + pair.Primary, "MLSD_READ_DATABASE_URL=" + wrong}
		launch(t, environ).fails("MLSD_READ_DATABASE_URL", "no standby of the primary's database")
		launch(t, environ, "check-config", "--database").fails("MLSD_READ_DATABASE_URL",
			"no standby of the primary's database")
	}
	right := launch(t, []string{"MLSD_DATABASE_URL=" + pair.Primary, "MLSD_READ_DATABASE_URL=" + pair.Standby},
		"check-config", "--database")
	if err := right.wait(); err != nil {
		t.Error(err)
	}
}
