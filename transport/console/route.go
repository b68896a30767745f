package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/metadata"
)

// orderTimeout bounds how long an order to the cluster may take.
const orderTimeout = 20 * time.Second

// maxBody bounds a request's body, mostSoughtBody that of a GroupSeekOrder, which may be about mostSought partitions: it is what
// brokers send each other at most.
const (
	maxBody        = 64 << 10
	mostSoughtBody = 16 << 20
)

// route is one operation of the admin API. The table routes is what the server serves and what openapi.json is made of.
type route struct {
	method, path string
	summary      string
	query        []parameter
	body         any // zero value of the request body's type, nil for none
	answer       any // zero value of the answer's type
	handle       func(c *call) (any, error)
}

// parameter is one of a route's query.
type parameter struct {
	name, meaning string
	kind          string // string, integer or boolean
}

// routes is the admin API.
var routes = []route{
	{"GET", "/v1/cluster", "The cluster in numbers.", nil, nil, ClusterInfo{}, getCluster},
	{"GET", "/v1/brokers", "All registered brokers.", nil, nil, []BrokerInfo{}, getBrokers},
	{"GET", "/v1/brokers/{broker}", "One broker.", nil, nil, BrokerInfo{}, getBroker},
	{"DELETE", "/v1/brokers/{broker}", "Forget a broker that has no replicas any more: it leaves the quorum, and its id never comes back.", nil, nil, Done{}, deleteBroker},
	{"GET", "/v1/brokers/{broker}/safe-to-stop", "Whether that broker may be stopped.", nil, nil, Health{}, getSafeToStop},
	{"GET", "/v1/brokers/{broker}/maintenance", "How far maintenance is.", nil, nil, Maintenance{}, getMaintenance},
	{"PUT", "/v1/brokers/{broker}/maintenance", "Begin maintenance: the broker hands over what it leads, and keeps its replicas.", nil, nil, Maintenance{}, putMaintenance},
	{"DELETE", "/v1/brokers/{broker}/maintenance", "End maintenance.", nil, nil, Maintenance{}, deleteMaintenance},
	{"GET", "/v1/brokers/{broker}/decommission", "What decommissioning would do, or how far it is.", nil, nil, Decommission{}, getDecommission},
	{"POST", "/v1/brokers/{broker}/decommission", "Begin to move all replicas away from a broker, so that it can go for good.", nil, nil, Decommission{}, postDecommission},
	{"POST", "/v1/brokers/{broker}/recommission", "Take a decommission back.", nil, nil, Decommission{}, postRecommission},
	{"GET", "/v1/metadata", "What this broker has applied of the metadata.", nil, nil, MetadataState{}, getMetadata},
	{"GET", "/v1/quorum", "The Raft quorum.", nil, nil, QuorumStatus{}, getQuorum},
	{"POST", "/v1/quorum/voters", "Make a broker a voter.", nil, QuorumOrder{}, QuorumStatus{}, postVoter},
	{"DELETE", "/v1/quorum/voters/{broker}", "Take a broker out of the quorum.", nil, nil, QuorumStatus{}, deleteVoter},
	{"POST", "/v1/quorum/transfer", "Hand the leadership of the quorum over.", nil, QuorumOrder{}, QuorumStatus{}, postTransfer},
	{"GET", "/v1/partitions", "Partitions in order of topic and number.", []parameter{
		{"topic", "only of this topic", "string"},
		{"broker", "only those with a replica on this broker", "integer"},
		{"state", "only those that are offline, under_min_isr, at_min_isr, under_replicated, reassigning, or unwell: any of the first, second and fourth", "string"},
		{"limit", "how many at most; 1000 when not given, 10000 at most", "integer"},
		{"after", "next of the previous answer", "string"},
	}, nil, PartitionPage{}, getPartitions},
	{"GET", "/v1/partitions/{topic}/{partition}", "One partition with its replicas as their brokers see them.", nil, nil, PartitionDetail{}, getPartition},
	{"GET", "/v1/partitions/{topic}/{partition}/diagnosis", "Why a partition is offline, under-replicated, or does not finish its move.", nil, nil, Diagnosis{}, getDiagnosis},
	{"GET", "/v1/recovery", "What electing leaders of partitions that have none, and nobody to follow, would lose.", []parameter{
		{"topic", "only of this topic", "string"},
	}, nil, []RecoveryPlan{}, getRecovery},
	{"POST", "/v1/recovery", "Elect leaders as planned: what they do not have is lost.", nil, RecoveryOrders{}, []Recovered{}, postRecovery},
	{"GET", "/v1/reassignments", "Moves of replicas that are under way.", nil, nil, []PartitionInfo{}, getReassignments},
	{"GET", "/v1/rebalance", "What the balancer does.", nil, nil, Rebalance{}, getRebalance},
	{"GET", "/v1/rebalance/plan", "What the balancer would do now.", nil, nil, Rebalance{}, getRebalancePlan},
	{"POST", "/v1/rebalance", "Plan and begin.", nil, nil, Rebalance{}, postRebalance},
	{"DELETE", "/v1/rebalance", "Drop what waits and take back what moves.", nil, nil, Cancelled{}, deleteRebalance},
	{"GET", "/v1/upgrade", "How far the brokers are with a new release, and the cluster with its features.", nil, nil, Upgrade{}, getUpgrade},
	{"POST", "/v1/upgrade", "Finalize a feature level, which every broker must know. It cannot be taken back.", nil, UpgradeOrder{}, Upgrade{}, postUpgrade},
	{"GET", "/v1/groups/{group}/diagnosis", "A consumer group as its coordinator sees it, why it does not get on, and what mends that.", nil, nil, GroupDiagnosis{}, getGroupDiagnosis},
	{"POST", "/v1/groups/{group}/offsets", "Set offsets of a group, and with force put out the members that it has, in one step: no commit of theirs counts afterwards.", nil, GroupSeekOrder{}, GroupSought{}, postGroupOffsets},
	{"GET", "/v1/log-dirs", "The log directories of this broker.", nil, nil, []LogDir{}, getLogDirs},
}

// call is one request of the admin API.
type call struct {
	*Admin
	ctx    context.Context
	r      *http.Request
	minISR func(t *metadata.Topic) int
}

// image is the metadata that the request is answered from.
func (c *call) image() *metadata.Image { return c.Cluster.Image() }

// brokerID reads the broker id of the path.
func (c *call) brokerID() (metadata.BrokerID, error) {
	text := c.r.PathValue("broker")
	if text == "self" {
		return c.BrokerID, nil
	}
	id, err := strconv.ParseInt(text, 10, 32)
	if err != nil || id < 0 {
		return metadata.NoBroker, invalid(fmt.Sprintf("%q is not a broker id", text), "a broker id is a number, or self", "GET /v1/brokers lists them")
	}
	return metadata.BrokerID(id), nil
}

// broker finds the broker of the path.
func (c *call) broker() (*metadata.Broker, error) {
	id, err := c.brokerID()
	if err != nil {
		return nil, err
	}
	b := c.image().Broker(id)
	if b == nil {
		return nil, unknownBroker(c.image(), id)
	}
	return b, nil
}

func unknownBroker(im *metadata.Image, id metadata.BrokerID) error {
	var ids []string
	for _, b := range im.Brokers() {
		ids = append(ids, b.ID.String())
	}
	return &metadata.Error{
		Kind: metadata.ErrUnknownBroker, What: fmt.Sprintf("there is no broker %d", id), Why: "the cluster's brokers are " + strings.Join(ids, ", "),
		Fix: "millrace cluster brokers list   shows them",
	}
}

func invalid(what, why, fix string) error {
	return &metadata.Error{Kind: metadata.ErrInvalidRequest, What: what, Why: why, Fix: fix}
}

// number reads an integer of the query; absent is def.
func (c *call) number(name string, def, least, most int64) (int64, error) {
	text := c.r.URL.Query().Get(name)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, invalid(fmt.Sprintf("%s=%s cannot be had", name, text), fmt.Sprintf("%s is a number from %d to %d", name, least, most), "leave it out for "+strconv.FormatInt(def, 10))
	}
	return n, nil
}

// read decodes the body into v, which must be all of it.
func (c *call) read(v any) error {
	d := json.NewDecoder(c.r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the document")
		}
	}
	if err != nil {
		return invalid("the request's body cannot be read", err.Error(), "see /v1/openapi.json for its form")
	}
	return nil
}

// serveRoute answers the requests of one route.
func (s *Server) serveRoute(rt *route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := s.allowed(r); err != nil {
			s.writeError(w, http.StatusForbidden, err)
			return
		}
		admin := s.admin.Load()
		if admin == nil {
			why := "it is starting or stopping"
			if reasons := s.cfg.Ready(); len(reasons) > 0 {
				why = reasons[0]
			}
			w.Header().Set("Retry-After", "1")
			s.writeError(w, http.StatusServiceUnavailable, &metadata.Error{What: "the broker is not ready", Why: why, Fix: "try again in a moment, or ask another broker"})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), orderTimeout)
		defer cancel()
		limit := int64(maxBody)
		if _, ok := rt.body.(GroupSeekOrder); ok {
			limit = mostSoughtBody
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		answer, err := rt.handle(&call{Admin: admin, ctx: ctx, r: r, minISR: admin.MinISR()})
		if r.Method != http.MethodGet {
			s.cfg.Logger.Info("order by the admin API", "method", r.Method, "path", r.URL.Path, "remote", r.RemoteAddr, "error", err)
		}
		if err != nil {
			s.writeError(w, statusOf(err), err)
			return
		}
		s.writeJSON(w, http.StatusOK, answer)
	}
}

func (s *Server) writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		s.cfg.Logger.Debug("answer not delivered", "error", err)
	}
}

// ErrorAnswer is the body of every answer that is no success: the three lines.
type ErrorAnswer struct {
	Error ErrorLines `json:"error" doc:"what went wrong"`
}

// ErrorLines say what failed, why, and what mends it.
type ErrorLines struct {
	What string `json:"what" doc:"what failed"`
	Why  string `json:"why" doc:"the fact that led to it"`
	Fix  string `json:"fix" doc:"what to do"`
}

func (s *Server) writeError(w http.ResponseWriter, status int, err error) {
	lines := ErrorLines{What: "the broker could not do it", Why: err.Error(), Fix: "see the broker's log"}
	if e, ok := errors.AsType[*metadata.Error](err); ok {
		lines = ErrorLines{e.What, e.Why, e.Fix}
	} else {
		switch {
		case errors.Is(err, metadata.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
			lines.What, lines.Fix = "the cluster did not answer in time; the change may still happen", "look before you try again; millrace cluster quorum status   shows whether a majority is there"
		case errors.Is(err, metadata.ErrNotController):
			lines.What, lines.Fix = "there is no controller", "millrace cluster quorum status   shows whether a majority is there"
		case errors.Is(err, errors.ErrUnsupported):
			lines.What, lines.Fix = "this version of the broker cannot do that", "look for a newer version"
		}
	}
	s.writeJSON(w, status, ErrorAnswer{lines})
}

// statusOf turns an error into a status of HTTP.
func statusOf(err error) int {
	for _, row := range []struct {
		status int
		kinds  []error
	}{
		{http.StatusNotFound, []error{metadata.ErrUnknownBroker, metadata.ErrUnknownTopic, metadata.ErrUnknownTopicID, metadata.ErrUnknownPartition, metadata.ErrGroupNotFound}},
		{http.StatusBadRequest, []error{metadata.ErrInvalidRequest, metadata.ErrInvalidAssignment}},
		{http.StatusGatewayTimeout, []error{metadata.ErrTimeout, context.DeadlineExceeded}},
		{http.StatusServiceUnavailable, []error{metadata.ErrNotController, metadata.ErrBusy, metadata.ErrClosed, metadata.ErrFailed, metadata.ErrNotSent}},
		{http.StatusNotImplemented, []error{errors.ErrUnsupported}},
		{http.StatusConflict, []error{metadata.ErrPolicyViolation, metadata.ErrStale, metadata.ErrGroupNotEmpty, metadata.ErrStaleBrokerEpoch, metadata.ErrNoReassignment, metadata.ErrRemoved, metadata.ErrInvalidFeatureLevel}},
	} {
		for _, kind := range row.kinds {
			if errors.Is(err, kind) {
				return row.status
			}
		}
	}
	return http.StatusInternalServerError
}
