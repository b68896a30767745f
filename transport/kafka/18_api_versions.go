package kafka

import "github.com/twmb/franz-go/pkg/kmsg"

// ApiVersions (key 18), versions 0 to 5.
//
//	v0-2  the versions of every API
//	v3    flexible body; the client tells its name and version (KIP-511); the
//	      response keeps header v0 for ever, so that clients can read it before
//	      they know what we speak
//	v4    features with a minimum of 0 may be listed (KAFKA-17011)
//	v5    the client may say which cluster and node it means (KIP-1242)
//
// A version above 5 is answered in the layout of v0 with error 35 and the range
// of this one API: the client takes the highest of it and asks again. The
// socket must stay open (trap 3).

// apiVersionsAnswers holds what every answer shares: the table does not change
// while the process runs.
type apiVersionsAnswers struct {
	keys []kmsg.ApiVersionsResponseApiKey
	own  kmsg.ApiVersionsResponseApiKey
}

func newAPIVersionsAnswers(apis []api) apiVersionsAnswers {
	var answers apiVersionsAnswers
	for _, a := range apis {
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = a.key, a.minAdvertised, a.max
		answers.keys = append(answers.keys, k)
		if a.key == keyAPIVersions {
			answers.own = k
		}
	}
	return answers
}

// unsupported is the answer to a version from the future.
func (a *apiVersionsAnswers) unsupported() *kmsg.ApiVersionsResponse {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version = 0
	resp.ErrorCode = codeUnsupportedVersion
	resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{a.own}
	return resp
}

func (h *Handlers) apiVersions(c *call, req *kmsg.ApiVersionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	if req.Version >= 3 {
		if !validSoftware(req.ClientSoftwareName) || !validSoftware(req.ClientSoftwareVersion) {
			resp.ErrorCode = c.error(codeInvalidRequest)
			return resp
		}
		c.req.Conn.SetSoftware(req.ClientSoftwareName, req.ClientSoftwareVersion)
	}
	if req.Version >= 5 {
		switch cluster, node := req.ClusterID != nil, req.NodeID != -1; {
		case cluster != node:
			resp.ErrorCode = c.error(codeInvalidRequest)
			return resp
		case cluster && (*req.ClusterID != h.cfg.Store.Image().ClusterID() || req.NodeID != int32(h.cfg.BrokerID)):
			resp.ErrorCode = c.error(codeRebootstrapRequired)
			return resp
		}
	}
	resp.ApiKeys = h.versions.keys
	if req.Version >= 3 {
		h.features(resp)
	}
	return resp
}

// validSoftware reports whether a client may call its software s: letters and
// digits, with dots and dashes between them (KIP-511).
func validSoftware(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		switch b := s[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		case b == '.' || b == '-':
			if i == 0 || i == len(s)-1 {
				return false
			}
		default:
			return false
		}
	}
	return true
}
