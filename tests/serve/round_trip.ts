// What a program in TypeScript does with the generated client. Each type is written down, so that the compiler finds a
// wrong one. Arguments: the server's address, the credentials, a photo of one face. Exits with 1 where an answer is wrong.

import { deepStrictEqual, ok, strictEqual } from "node:assert";
import { readFileSync } from "node:fs";
import * as api from "./client";
import { client } from "./client/client.gen";

const [, , baseUrl, credentials, photo] = process.argv;
const headers = { "X-RPC-DIRECTORY": "typescript" };

// An optional field, a list of texts that may be null, a free field: a description that loses one does not compile.
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const typed: {
  id: Same<api.IdentifiedFace["personId"], string | undefined>;
  face: Same<api.GetAFaceResponse, Blob | File>;
  photo: Same<api.InsertOrRecogniseData["body"], Blob | File>;
  tags: Same<api.PersonChange["tags"], string[] | null | undefined>;
  further: Same<api.Person["personType"], unknown>;
  changed: Same<api.ChangeARecordResponse, { [key: string]: never }>;
  error: Same<api.GetARecordError, api.Error>;
  root: Same<api.IdentifiedFace["rootPersonId"], string | undefined>;
} = { root: true, id: true, face: true, photo: true, tags: true, further: true, changed: true, error: true };

async function roundTrip(): Promise<void> {
  ok(Object.values(typed).every(Boolean));
  client.setConfig({ baseUrl, auth: credentials });
  const insertion = await api.insertOrRecognise({
    body: new Blob([readFileSync(photo)]),
    headers: { ...headers, "X-RPC-PERSON-NAME": "Grace", "X-RPC-EXTERNAL-ID": "N/1906" },
    query: { update: false, similar_limit: 1, "min-cpq": -1 },
    throwOnError: true,
  });
  strictEqual(insertion.response.status, 201);
  const [found]: api.IdentifiedFace[] = insertion.data.identifiedFaces;
  strictEqual(found.rootPersonId, found.personId);
  deepStrictEqual([found.newId, found.name, found.similar], [true, "Grace", []]);
  ok(found.attributes.landmarks["nose-tip"].x > 0);
  const personId: string = found.personId ?? "";
  const path = { personId };

  const change: api.PersonChange = { name: "Grace H.", tags: ["navy"], ignore: null, personType: "staff" };
  const changed = await api.changeARecord({ path, headers, body: change, throwOnError: true });
  deepStrictEqual([changed.response.status, changed.data], [202, {}]);

  const one = await api.getARecord({ path, headers, throwOnError: true });
  const [person]: api.Person[] = one.data.people;
  deepStrictEqual([person.name, person.externalId, person.tags], ["Grace H.", "N/1906", ["navy"]]);
  strictEqual(person.personType, "staff");
  for (const list of [api.listPeople, api.listPersons]) {
    const filters = { count: 1, "person-type": "staff", "external-id": ["N/1906", "another"] };
    const page = await list({ headers, query: { ...filters, "sort-order": "descending" }, throwOnError: true });
    const collection: api.Page = page.data.personCollectionResponse;
    deepStrictEqual([collection.totalCount, collection.nextIndexState], [1, undefined]);
    strictEqual(page.data.people[0].personId, personId);
  }
  const byId = await api.findByExternalId({ path: { externalId: "N/1906" }, headers, throwOnError: true });
  strictEqual(byId.data.people[0].personId, personId);

  const face = await api.getAFace({ path, headers, throwOnError: true });
  const bytes = new Uint8Array(await face.data.arrayBuffer());
  deepStrictEqual([...bytes.slice(0, 2)], [0xff, 0xd8]); // a JPEG file begins so
  const guid = person.imageURI.split("/").pop() ?? "";
  const object = await api.getAnObject({ path: { guid }, headers, throwOnError: true });
  deepStrictEqual(new Uint8Array(await object.data.arrayBuffer()), bytes);

  const merged = await api.merge({ headers, body: { personIds: [personId] }, throwOnError: true });
  strictEqual(merged.response.status, 202);
  const deleted = await api.deleteARecord({ path, headers, query: { recursive: true }, throwOnError: true });
  strictEqual(deleted.response.status, 204);
  const missing = await api.getARecord({ path, headers });
  deepStrictEqual([missing.error?.errorReason, missing.error?.status], ["person-unknown", 404]);
  const stranger = await api.listPeople({ headers, auth: "alice:wrong" });
  strictEqual(stranger.error?.errorReason, "unauthorized");
  const health: api.Status | undefined = (await api.health()).data;
  strictEqual(health?.status, "ok");
}

// A header that the user sets has its effect, and a size in the query wins.
async function leastSize(): Promise<void> {
  const queries: { "min-size"?: number }[] = [{}, { "min-size": -1 }, { "min-size": 5 }];
  const inserted: boolean[] = [];
  for (const query of queries) {
    const answer = await api.insertOrRecognise({
      body: new Blob([readFileSync(photo)]),
      headers: { ...headers, "X-RPC-PERSON-NAME": "Grace", "X-RPC-EXTERNAL-ID": "N/1906", "X-RPC-MIN-SIZE": 5000 },
      query,
      throwOnError: true,
    });
    const [face]: api.IdentifiedFace[] = answer.data.identifiedFaces;
    inserted.push(face.newId === true);
    if (face.personId) await api.deleteARecord({ path: { personId: face.personId }, headers, throwOnError: true });
  }
  deepStrictEqual(inserted, [false, false, true]);
}

roundTrip().then(leastSize).catch((error: unknown) => {
  console.error(error);
  process.exit(1);
});
