package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/internal/promtest"
)

// scrapeFile is the variable with a file for the last page of metrics, which promtool then checks.
const scrapeFile = "MLSD_TEST_SCRAPE"

// Every query of the dashboard has a result: it is evaluated over the metrics of a server with some
// traffic, as Prometheus would have read them.
func TestDashboard(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	const scrapes, interval = 5, 15 * time.Second
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	traffic := newTraffic(t)
	series := promtest.New()
	rules := promtest.NewEvaluation(series)
	target := labels.FromStrings("job", "mlsd", "instance", "a")
	var now time.Time
	for i := range scrapes {
		traffic.round(t)
		now = begin.Add(time.Duration(i) * interval)
		status, page := fetch(t, traffic.admin+"/metrics")
		if status != http.StatusOK {
			t.Fatalf("/metrics: %d", status)
		}
		if err := series.Scrape([]byte(page), now, target); err != nil {
			t.Fatal(err)
		}
		for _, r := range rulesOf(t, "recording.yml") {
			if _, err := rules.Rule(t.Context(), r, now); err != nil {
				t.Fatal(err)
			}
		}
		if file := os.Getenv(scrapeFile); file != "" {
			if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	queries := dashboardQueries(t)
	for _, q := range queries {
		vector, err := series.Query(t.Context(), q.expr, now)
		if err != nil {
			t.Errorf("%s: %v", q.panel, err)
		} else if !slices.ContainsFunc(vector, func(s promql.Sample) bool { return !math.IsNaN(s.F) }) {
			t.Errorf("%s: %s has no result (%d without a number)", q.panel, q.expr, len(vector))
		}
	}
	t.Logf("%d queries have a result", len(queries))
}

// rulesOf reads a file of rules.
func rulesOf(t *testing.T, file string) []promtest.Rule {
	t.Helper()
	all, err := promtest.ReadRules(root + "/deploy/ops/" + file)
	if err != nil || len(all) == 0 {
		t.Fatalf("%d rules, %v", len(all), err)
	}
	return all
}

// dashboardQuery is a query of the dashboard, with its variables replaced.
type dashboardQuery struct{ panel, expr string }

// dashboardQueries reads the dashboard. It fails the test if two panels have one id, or if a panel has
// no query or lies over another one.
func dashboardQueries(t *testing.T) (queries []dashboardQuery) {
	t.Helper()
	text, err := os.ReadFile(root + "/deploy/ops/grafana/mlsd.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	variables := strings.NewReplacer("$job", "mlsd", "$instance", ".*", "$__rate_interval", "1m")
	for _, p := range dashboard.Panels {
		if ids[p.ID] || (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("the panel %q has the id %d and %d queries", p.Title, p.ID, len(p.Targets))
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%q lies over %q, or outside", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			queries = append(queries, dashboardQuery{p.Title, variables.Replace(target.Expr)})
		}
	}
	return queries
}

// traffic is a server with users who do something of everything.
type traffic struct {
	*world
	alice, bob *user
	convo      *convo
	calls      chan http.Header // of bob's webhook
	events     *bufio.Reader
}

func newTraffic(t *testing.T) *traffic {
	t.Helper()
	database, h := pgtest.URL(t), newHook(t)
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	w := &traffic{world: newWorld(t), calls: h.calls}
	s := boot(t, nil, w.flags("--database-url", database, "--allow-loopback=true")...)
	w.use(s.admin, s.public)
	causeEverything(t, w.world, db)
	w.alice, w.bob = w.user(), w.user()
	w.convo = w.alice.create(w.bob)
	w.bob.procedure(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: w.convo.id}).must().ok()
	url := h.URL + "/"
	w.bob.procedure(mlsapi.NSIDRegisterPushTarget,
		&mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: &url}).must().ok()
	w.events = w.alice.stream()
	return w
}

// round does something of everything once. It returns when alice has got the event of the message, and
// bob's device its call.
func (w *traffic) round(t *testing.T) {
	t.Helper()
	hello := w.alice.message(w.convo, fmt.Sprint("hello ", time.Now()))
	w.alice.procedure(mlsapi.NSIDSendMessage, hello).must().ok()
	w.alice.procedure(mlsapi.NSIDSendMessage, hello).must().ok()
	other := w.alice.message(w.convo, "something else")
	other.IdempotencyKey = hello.IdempotencyKey
	w.alice.procedure(mlsapi.NSIDSendMessage, other).must().fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
	late := &convo{id: w.convo.id, group: w.convo.group, epoch: w.convo.epoch + 1}
	w.alice.procedure(mlsapi.NSIDSendMessage, w.alice.message(late, "too soon")).must().fails(http.StatusConflict,
		mlsapi.ErrEpochMismatch)

	carol := w.user()
	w.alice.addition(w.convo, carol).must().ok()
	w.convo.epoch++
	carol.query(mlsapi.NSIDGetWelcome, "convoId", w.convo.id).must().ok()
	carol.procedure(mlsapi.NSIDConfirmWelcome, &mlsapi.ConfirmWelcomeInput{ConvoID: w.convo.id, Success: true}).must().ok()
	<-w.calls
	awaitMessage(t, w.events)
}
