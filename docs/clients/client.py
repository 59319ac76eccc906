from image_retrieval_client import AuthenticatedClient
from image_retrieval_client.api.search import search, search_by_image
from image_retrieval_client.models import ErrorAnswer, MemberQuery, SearchRequest, SearchResponse
from image_retrieval_client.types import File

client = AuthenticatedClient("http://localhost:7860", token="please-choose-your-own")
like_1 = SearchRequest(queries=[MemberQuery(image_id=1)], k=3, include=["label", "path"])
answers = [search.sync(client=client, body=like_1)]
with open("query.jpg", "rb") as photo:
    answers.append(search_by_image.sync(client=client, body=File(photo), k=3, include="label,path"))
for answer in answers:
    match answer:
        case SearchResponse(hits=hits):
            for hit in hits:
                print(f"{hit.score:.4f}", hit.label, hit.path)
        case ErrorAnswer(error=error):
            print(error.code, error.message)
