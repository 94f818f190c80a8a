"""The portal: web pages for people, on the operator listener. It makes the API's calls as the logged-in caller."""
